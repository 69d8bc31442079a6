"""Which requests an engine takes, and what it reads out of them."""

from collections.abc import Sequence as Seq

from benthic.engine.config import EngineConfig
from benthic.engine.request import Request
from benthic.errors import PromptTooLong, RequestError, shown
from benthic.models.config import ModelConfig


class RequestChecks:
    """Checks requests against a model and the engine's budgets."""

    def __init__(
        self, model: ModelConfig, config: EngineConfig, max_model_len: int, *, reads_grammars: bool = False
    ) -> None:
        self._model, self._config, self._max_model_len = model, config, max_model_len
        self._reads_grammars = reads_grammars

    def check(self, request: Request) -> None:
        """Whether the engine can serve the request at all.

        Raises:
            PromptTooLong: the prompt leaves no room for a token.
            RequestError: it is empty, holds ids outside the vocabulary, or asks for what the engine does not keep.
        """
        prompt, params = request.prompt_ids, request.params
        if not prompt:
            raise RequestError("the prompt is empty; it must hold at least 1 token", param="prompt")
        # A request that generates nothing only needs room for its prompt.
        longest = self._max_model_len - (params.max_tokens != 0)
        if len(prompt) > longest:
            raise PromptTooLong(
                f"the prompt has {len(prompt)} tokens; at most {longest} leave room for an answer "
                f"in a context of {self._max_model_len}",
                param="prompt",
            )
        self.check_ids(prompt, "prompt")
        self._check_min_tokens(request)
        if params.grammar is not None and not self._reads_grammars:
            raise RequestError(
                "the request has a grammar and the engine has nobody who reads one; start it with a source of masks",
                param="grammar",
            )
        for name, ids in params.named_ids():
            self.check_ids(ids, name)
        for name, wanted, kept in (
            ("return_routes", params.return_routes, self._config.keep_routes),
            ("return_picks", params.return_picks, self._config.keep_picks),
        ):
            if wanted and not kept:
                setting = name.replace("return", "keep")
                raise RequestError(
                    f"{name} is True and the engine's {setting} is False; start the engine with {setting}", param=name
                )

    def _check_min_tokens(self, request: Request) -> None:
        least, stops = request.params.min_tokens, len(request.params.stop_token_ids) + 1
        if least and stops >= self._model.vocab_size and len(self.stop_ids(request)) >= self._model.vocab_size:
            raise RequestError(
                f"min_tokens is {least} and every token of the vocabulary would end the answer, so none is left to "
                "choose before; min_tokens must be 0, or stop_token_ids leave out a token",
                param="min_tokens",
            )

    def check_ids(self, ids: Seq[int], param: str) -> None:
        """Refuses ids that the model has no embedding for.

        Raises:
            RequestError: one is not an integer from 0 to the vocabulary's size - 1.
        """
        vocab_size = self._model.vocab_size
        for value in ids:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
                raise RequestError(
                    f"{param} holds {shown(value)}; token ids are integers from 0 to {vocab_size - 1}", param=param
                )

    def limit_len(self, request: Request) -> int:
        """Prompt and answer of the request, in tokens, at most."""
        wanted = request.params.max_tokens
        room = self._max_model_len - len(request.prompt_ids)
        return len(request.prompt_ids) + (room if wanted is None else min(wanted, room))

    def stop_ids(self, request: Request) -> frozenset[int]:
        """Tokens that end the request."""
        eos = () if request.params.ignore_eos else (self._model.eos_token_id,)
        return frozenset((*eos, *request.params.stop_token_ids))
