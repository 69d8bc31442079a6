"""The formats that answers must conform to, for both front doors."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import cached_property
from typing import Any

from benthic.engine.grammar import Grammar, MaskSource
from benthic.engine.sampling import SamplingParams
from benthic.errors import RequestError
from benthic.text.grammar import ReadyGrammar
from benthic.text.grammar_fields import read_format
from benthic.text.grammar_masks import GrammarMasks
from benthic.text.grammar_service import GrammarService
from benthic.text.grammar_vocabulary import GrammarVocabulary
from benthic.text.tokenizer import Tokenizer

ResponseFormat = Mapping[str, Any]
"""As in a chat request: {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": ...}}, {"type":
"regex", "pattern": ...}, {"type": "ebnf", "grammar": ...}, {"type": "structural_tag", "format": ...}. A schema may also
stand directly under "schema"."""


class Formats:
    """Reads formats for one tokenizer; the process that tries them out starts with the first.

    Args:
        tokenizer: None: there are no formats, for answers have no text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def masks(self, vocab_size: int) -> MaskSource | None:
        """What the engine reads grammars by."""
        if self._tokenizer is None:
            return None
        return GrammarMasks(GrammarVocabulary(self._tokenizer.path, vocab_size))

    def submit(self, response_format: ResponseFormat | None) -> "Future[ReadyGrammar] | None":
        """The grammar of a format, once it has been tried; None where there is none to keep to.

        Raises:
            BadSchema: the format cannot be used; `param` names the place.
            RequestError: it has a wrong shape, or there is no tokenizer.
        """
        if response_format is None:
            return None
        if not isinstance(response_format, Mapping):
            raise RequestError(
                f"response_format is {response_format!r:.100}; it must be a mapping such as {{'type': 'json_object'}}",
                param="response_format",
            )
        inner = "json_schema" if "json_schema" in response_format else ""
        spec = read_format(dict(response_format), "response_format", inner=inner)
        return None if spec is None else self._service.submit(spec)

    def close(self) -> None:
        """Ends the process, if there is one."""
        if "_service" in self.__dict__:
            self._service.close()

    @cached_property
    def _service(self) -> GrammarService:
        if self._tokenizer is None:
            raise RequestError("this LLM has no tokenizer, and a format speaks of text; give one to LLM(...)")
        return GrammarService(self._tokenizer.path)


def constrained(params: SamplingParams, ready: ReadyGrammar | None) -> SamplingParams:
    """The parameters of an answer that must conform to a format, if there is one.

    Where the answer begins with reasoning (`reasoning_end_id`) the format holds once that is over.

    Raises:
        RequestError: the parameters have another grammar already.
    """
    if ready is None:
        return params
    if params.grammar is not None:
        raise RequestError("response_format is given and params have a grammar; leave out one", param="response_format")
    return replace(params, grammar=Grammar(ready.key, ready.compiled, params.reasoning_end_id, ready.prefix))
