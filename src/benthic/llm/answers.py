"""What comes of a prompt: the records that callers get, and the open answers that become them.

Text is made here from token events, stop strings included; the engine knows tokens only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from benthic.engine.cut import AnswerCut
from benthic.engine.request import (
    ErrorKind,
    Event,
    Extras,
    FinalOutput,
    FinishReason,
    Request,
    RequestReport,
    TokenEvent,
    TokenLogprobs,
)
from benthic.errors import BenthicError, Cancelled, CapacityError, EngineError, RequestError
from benthic.text.detokenize import Detokenizer

_ERRORS: dict[ErrorKind, type[BenthicError]] = {
    "request": RequestError,
    "capacity": CapacityError,
    "timeout": Cancelled,
    "numbers": EngineError,
    "engine": EngineError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str
    """Without the end token, and cut before a stop string unless `include_stop` was set."""
    token_ids: list[int]
    """All generated tokens up to the one that ended it: the end token, or that which completed the stop string."""
    logprobs: list[float] | None
    """Natural log-probability of each token, if asked for: of the raw distribution, before temperature and cuts."""
    top_logprobs: list[dict[int, float]] | None
    """At each position the most likely tokens, best first, as many as `SamplingParams.logprobs` asked for."""
    finish_reason: FinishReason
    """"stop": end token, stop token or stop string; "length": max_tokens or a full context; "error": see `error`."""
    stop_reason: int | str | None
    """The stop token or stop string that ended it."""
    error: str | None
    error_kind: ErrorKind | None
    """Whose fault the error was: "request" (the request is wrong), "capacity" (no room for it now), "timeout" (its time
    was over), "numbers" (its numbers were not finite) or "engine" (the engine failed under it)."""
    routes: Extras | None = field(default=None, compare=False)
    """Expert ids of prompt and answer but its last token, uint16 [tokens, routed layers, experts a token], if asked."""
    picks: Extras | None = field(default=None, compare=False)
    """The indexer's entry numbers likewise, int32 [tokens, CSA layers, index_topk], -1 where it picked none."""
    report: RequestReport | None = field(default=None, compare=False)
    """How this answer was served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A prompt and its answers. Two are equal if they say the same; how they were served does not count."""

    prompt: str | None
    """The prompt, where it was given as text."""
    prompt_token_ids: list[int]
    cached_len: int = field(compare=False)
    """Prompt tokens that were found in the cache instead of computed, by the first answer."""
    outputs: list[CompletionOutput]
    prompt_logprobs: list[float | None] | None = None
    """Natural log-probability of each prompt token, None for the first, if `SamplingParams.prompt_logprobs` is set."""
    prompt_top_logprobs: list[dict[int, float] | None] | None = None
    """At each prompt position the most likely tokens, as many as asked for; None for the first."""
    report: RequestReport | None = field(default=None, compare=False)
    """How the first answer was served, which computed the prompt."""


@dataclass(slots=True)
class OpenAnswer:
    """One request on its way: its text so far and, in the end, its final output."""

    request: Request
    index: int
    detokenizer: Detokenizer | None
    text: str = ""
    final: FinalOutput | None = None
    cut: AnswerCut = field(default_factory=AnswerCut)

    def take(self, event: Event) -> str:
        """The text that an event adds: of a token, or what was held back at the end.

        Tokens after the one that completed a stop string are none of the answer's.
        """
        if isinstance(event, TokenEvent):
            if self.stop_string is not None:
                return ""
            self.cut.take(event)
            piece = "" if self.detokenizer is None else self.detokenizer.push([event.token_id])
        else:
            piece = "" if self.detokenizer is None else self.detokenizer.flush()
            self.final = event if self.stop_string is None else self.cut.apply(event)
        self.text += piece
        return piece

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; the request can be ended."""
        return None if self.detokenizer is None else self.detokenizer.stopped

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; None while it runs."""
        if self.final is None:
            return None
        return self.final.finish_reason

    @property
    def failure(self) -> BenthicError | None:
        """The error that it ended with, as a stream raises it; None where it went well or still runs."""
        if self.final is None or self.final.error_kind is None:
            return None
        return _ERRORS[self.final.error_kind](self.final.error or "the request failed")

    def output(self) -> CompletionOutput:
        """The finished answer."""
        final, reason = self.final, self.finish_reason
        assert final is not None and reason is not None, f"request {self.request.request_id} has no final output"
        chosen, top = _columns(final.logprobs)
        return CompletionOutput(
            index=self.index,
            text=self.text,
            token_ids=list(final.token_ids),
            logprobs=chosen,
            top_logprobs=top,
            finish_reason=reason,
            stop_reason=self.stop_string if self.stop_string is not None else final.stop_token_id,
            error=final.error,
            error_kind=final.error_kind,
            routes=None if final.extras is None else final.extras.routes,
            picks=None if final.extras is None else final.extras.picks,
            report=final.report,
        )


@dataclass(slots=True)
class OpenPrompt:
    """A prompt with its answers; `name` says which prompt it is."""

    name: str
    prompt: str | None
    prompt_ids: list[int]
    answers: list[OpenAnswer]

    def output(self) -> RequestOutput:
        """The finished prompt."""
        first = self.answers[0].final
        assert first is not None, f"{self.name} has no final output"
        chosen, top = _columns(first.prompt_logprobs)
        return RequestOutput(
            prompt=self.prompt,
            prompt_token_ids=self.prompt_ids,
            cached_len=first.cached_len,
            outputs=[answer.output() for answer in self.answers],
            prompt_logprobs=None if chosen is None else [None, *chosen],
            prompt_top_logprobs=None if top is None else [None, *top],
            report=first.report,
        )


def _columns(
    logprobs: Sequence[TokenLogprobs] | None,
) -> tuple[list[float] | None, list[dict[int, float]] | None]:
    if logprobs is None:
        return None, None
    return [entry.chosen for entry in logprobs], [dict(entry.top) for entry in logprobs]
