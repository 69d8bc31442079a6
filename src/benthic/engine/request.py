"""A request's life inside the engine: what was asked, how far it is, and what came out.

`Request`, `TokenEvent` and `FinalOutput` travel between threads and are frozen. `Sequence` is the engine's own
mutable state. Its laws, asserted after each change:

    0 <= computed_len <= total_len,   prompt_len <= total_len <= limit_len
    WAITING holds nothing computed;   DONE has exactly one finish reason

    WAITING --admit--> RUNNING --finish--> DONE
       ^                  |
       `----retract-------'      (its blocks are needed by an older request; tokens stay, entries are recomputed)
"""

import secrets
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from benthic.engine.sampling import SamplingParams

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt to continue. `params.n` and `params.stop` are the front door's business and are not read here."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log-probabilities at one position, of the raw distribution (temperature 1, nothing cut off)."""

    chosen: float
    top: tuple[tuple[int, float], ...]
    """The most likely (token id, log-probability), best first, as many as asked for."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token; `index` counts the request's generated tokens from 0."""

    request_id: str
    index: int
    token_id: int
    logprobs: TokenLogprobs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalOutput:
    """The end of a request: exactly one for each, after its last token event, failures included.

    `token_ids` holds all generated tokens, the stopping token included (then `stop_token_id` names it).
    `error` says what went wrong when `finish_reason` is "error".
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None
    finish_reason: FinishReason
    stop_token_id: int | None = None
    error: str | None = None
    prompt_len: int
    cached_len: int = 0
    """Prompt tokens whose entries were found in the cache instead of computed."""


Event = TokenEvent | FinalOutput


class Phase(StrEnum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


class Sequence:
    """The engine's record of a live request.

    Args:
        request: what was asked; already checked.
        number: arrival order, unique; older requests have smaller numbers.
        limit_len: prompt and generated tokens together may not exceed this.
        stop_ids: tokens that end it.
    """

    __slots__ = (
        "computed_len", "finish_reason", "limit_len", "logprobs", "number", "phase", "prompt_len", "request",
        "seed", "stop_ids", "tokens",
    )  # fmt: skip

    def __init__(self, request: Request, number: int, limit_len: int, stop_ids: frozenset[int]) -> None:
        self.request = request
        self.number = number
        self.limit_len = limit_len
        self.stop_ids = stop_ids
        self.seed = secrets.randbits(63) if request.params.seed is None else request.params.seed
        self.tokens = list(request.prompt_ids)
        self.prompt_len = len(self.tokens)
        self.computed_len = 0
        self.logprobs: list[TokenLogprobs] = []
        self.phase = Phase.WAITING
        self.finish_reason: FinishReason | None = None
        self._check()

    @property
    def total_len(self) -> int:
        """Tokens known: the prompt and what was generated."""
        return len(self.tokens)

    @property
    def pending_len(self) -> int:
        """Tokens known whose entries are not computed yet; 1 while decoding."""
        return len(self.tokens) - self.computed_len

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def is_decoding(self) -> bool:
        """Whether only the last known token is pending."""
        return self.phase is Phase.RUNNING and len(self.tokens) - self.computed_len == 1

    def admit(self) -> None:
        """WAITING -> RUNNING."""
        assert self.phase is Phase.WAITING, self.phase
        self.phase = Phase.RUNNING

    def retract(self) -> None:
        """RUNNING -> WAITING: what was computed is given up, tokens stay."""
        assert self.phase is Phase.RUNNING, self.phase
        self.phase = Phase.WAITING
        self.computed_len = 0
        self._check()

    def advance(self, length: int) -> None:
        """Counts `length` more tokens as computed."""
        assert self.phase is Phase.RUNNING, self.phase
        self.computed_len += length
        self._check()

    def append(self, token_id: int, logprobs: TokenLogprobs | None) -> TokenEvent:
        """Adds a generated token; all before it must be computed."""
        assert self.phase is Phase.RUNNING, self.phase
        assert self.computed_len == len(self.tokens), (self.computed_len, len(self.tokens))
        index = self.num_generated
        self.tokens.append(token_id)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        self._check()
        return TokenEvent(self.request.request_id, index, token_id, logprobs)

    def natural_end(self) -> FinishReason | None:
        """The reason to end after the last generated token, if there is one."""
        if self.tokens[-1] in self.stop_ids:
            return "stop"
        return "length" if len(self.tokens) >= self.limit_len else None

    def finish(self, reason: FinishReason, error: str | None = None) -> FinalOutput:
        """Any live phase -> DONE; the one final output."""
        assert self.phase is not Phase.DONE, self.request.request_id
        self.phase = Phase.DONE
        self.finish_reason = reason
        generated = tuple(self.tokens[self.prompt_len :])
        stopped = reason == "stop" and bool(generated) and generated[-1] in self.stop_ids
        return FinalOutput(
            request_id=self.request.request_id,
            token_ids=generated,
            logprobs=None if self.request.params.logprobs is None else tuple(self.logprobs),
            finish_reason=reason,
            stop_token_id=generated[-1] if stopped else None,
            error=error,
            prompt_len=self.prompt_len,
        )

    def _check(self) -> None:
        total = len(self.tokens)
        assert 0 <= self.computed_len <= total, (self.computed_len, total)
        assert self.prompt_len <= total <= self.limit_len, (self.prompt_len, total, self.limit_len)
        assert self.phase is not Phase.WAITING or self.computed_len == 0, self.computed_len
