"""What callers hand in, read into plain records: prompts, parameters, ids."""

import itertools
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

from benthic.engine.engine import Engine
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams, choice_params, is_unicode
from benthic.errors import PromptTooLong, RequestError, shown
from benthic.llm.answers import OpenAnswer, OpenPrompt
from benthic.text.detokenize import Detokenizer
from benthic.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]

_NO_TOKENIZER = (
    "this LLM has no tokenizer (no tokenizer.json in its folder, none given); give prompts as token ids, or a "
    "tokenizer to LLM(...)"
)


class PromptReader:
    """Makes requests of prompts, with ids of their own.

    Args:
        tokenizer: for text; None: prompts are ids.
        eos_token_id: shows no text.
    """

    def __init__(self, tokenizer: Tokenizer | None, eos_token_id: int) -> None:
        self._tokenizer = tokenizer
        self._eos_token_id = eos_token_id
        self._numbers: Iterator[int] = itertools.count()

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            RequestError: there is none.
        """
        if self._tokenizer is None:
            raise RequestError(_NO_TOKENIZER)
        return self._tokenizer

    def read_all(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        **fields: Any,
    ) -> list[OpenPrompt]:
        """One or many prompts, with parameters for all or for each and `fields` of `Request` for all.

        Raises:
            RequestError: something is of the wrong kind.
        """
        given = prompts.tolist() if hasattr(prompts, "tolist") else prompts
        if not isinstance(given, Sequence):
            raise RequestError(
                f"prompts is {shown(prompts)}; it must be a text, a list of token ids, or a list of these",
                param="prompts",
            )
        texts = [given] if _is_one_prompt(given) else list(given)
        each = _params_of_each(params, len(texts))
        return [
            self.read(prompt, p, place, **fields) for place, (prompt, p) in enumerate(zip(texts, each, strict=True))
        ]

    def read(self, prompt: Any, params: SamplingParams, place: int = 0, **fields: Any) -> OpenPrompt:
        """One prompt with its n answers; those after the first take over what the first computes of the prompt.

        Args:
            fields: of `Request`.

        Raises:
            RequestError: it is neither text nor ids, or `params` are none.
        """
        if not isinstance(params, SamplingParams):
            raise RequestError(f"params[{place}] is {shown(params)}; it must be a SamplingParams", param="params")
        name = f"prompts[{place}]"
        if isinstance(prompt, str) and not is_unicode(prompt):
            raise RequestError(f"{name} is {shown(prompt)}; a text must consist of whole characters", param=name)
        if isinstance(prompt, str) and self._tokenizer is None:
            raise RequestError(f"{name} is the text {shown(prompt)}; {_NO_TOKENIZER}", param=name)
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else token_ids(prompt, name)
        answers: list[OpenAnswer] = []
        for index in range(params.n):
            request = Request(
                request_id=str(next(self._numbers)),
                prompt_ids=tuple(ids),
                params=choice_params(params, index),
                fork_of=answers[0].request.request_id if answers else None,
                **fields,
            )
            answers.append(OpenAnswer(request, index, self._detokenizer(params)))
        return OpenPrompt(name, prompt if isinstance(prompt, str) else None, ids, answers)

    def _detokenizer(self, params: SamplingParams) -> Detokenizer | None:
        if self._tokenizer is None:
            if params.stop:
                raise RequestError(
                    f"stop is {shown(params.stop)}; it must be empty, or use stop_token_ids: stop strings need a "
                    "tokenizer, and this LLM has none (no tokenizer.json in its folder, none given)",
                    param="stop",
                )
            return None
        return Detokenizer(
            self._tokenizer,
            params.stop,
            {self._eos_token_id, *params.stop_token_ids},
            include_stop=params.include_stop,
            after_id=None if params.stop_in_reasoning else params.reasoning_end_id,
        )


def check_prompt(engine: Engine, prompt: OpenPrompt) -> None:
    """Refuses what the engine would refuse, by the prompt's name.

    Raises:
        RequestError: see `Engine.check`.
    """
    try:
        engine.check(prompt.answers[0].request)
    except RequestError as error:
        raise type(error)(f"{prompt.name}: {error}", param=error.param) from None


def _is_one_prompt(prompts: Any) -> bool:
    """Whether a text or one list of ids was given instead of a list of prompts."""
    return isinstance(prompts, str) or (len(prompts) > 0 and all(isinstance(item, Integral) for item in prompts))


def _params_of_each(params: Any, count: int) -> list[SamplingParams]:
    """Parameters for `count` prompts, from what a caller gave for all or for each."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, Sequence) or isinstance(params, str | bytes):
        raise RequestError(
            f"params is {shown(params)}; it must be a SamplingParams, or a list with one for each prompt",
            param="params",
        )
    if len(params) != count:
        raise RequestError(
            f"there are {len(params)} params for {count} prompts; give one, or one a prompt", param="params"
        )
    return list(params)


def token_ids(ids: Any, name: str) -> list[int]:
    """Plain integers from a list, tuple, tensor or array of integers."""
    values = ids.tolist() if hasattr(ids, "tolist") else ids
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        allowed = "a list of token ids" + (", as tokenizer.encode(text) gives" if name == "ids" else " or text")
        raise RequestError(f"{name} is {shown(ids)}; it must be {allowed}", param=name)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise RequestError(f"{name} holds {shown(value)}; token ids are integers", param=name)
    return [int(v) for v in values]


def checked_ids(engine: Engine, ids: Sequence[int]) -> list[int]:
    """Ids that the packed path can take; a full context needs no room for an answer here."""
    values = token_ids(ids, "ids")
    if not values:
        raise RequestError("ids is empty; it must hold at least 1 token", param="ids")
    if len(values) > engine.max_model_len:
        raise PromptTooLong(f"ids holds {len(values)} tokens; the context has {engine.max_model_len}", param="ids")
    engine.check_ids(values, "ids")
    return values
