"""The engine's own mutable record of a live request, and its laws.

    0 <= computed_len <= scheduled_len <= known_len,    prompt_len <= total_len <= known_len <= limit_len

`tokens` are the known ones; `known_len` also counts the token that a pass in flight is about to give, so that the
next pass can be planned before it is here: its value is then read on the device. `computed_len` counts the rows that
are committed, `scheduled_len` also those in flight. What waits or is done has nothing in flight and no row.

    WAITING --admit--> RUNNING --finish--> DONE
       ^                  |
       `----retract-------'      (its memory is needed by an older request; tokens stay, the rest is recomputed)
"""

import math
import secrets
from enum import StrEnum
from typing import Protocol

from benthic.cache.row import Row
from benthic.cache.work import Cut
from benthic.engine.constraint import Constraint
from benthic.engine.request import (
    ErrorKind,
    FinalOutput,
    FinishReason,
    Request,
    RequestReport,
    RowExtras,
    TokenEvent,
    TokenLogprobs,
)
from benthic.engine.returned_extras import wide_picks, wide_routes
from benthic.engine.token_counts import TokenCounts


class Phase(StrEnum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


class ExtrasBuffer(Protocol):
    """Extras of one sequence by position; what was written twice counts as written last."""

    def write(self, start: int, extras: RowExtras) -> None:
        """Puts those of the rows from position `start` on."""
        ...

    def read(self, start: int, end: int) -> RowExtras:
        """Those of positions start .. end - 1."""
        ...

    def page(self, number: int) -> RowExtras:
        """Those of one cache page."""
        ...


class Sequence:
    """One live request.

    Args:
        request: what was asked; already checked.
        number: arrival order, unique; older requests have smaller numbers.
        limit_len: prompt and generated tokens together may not exceed this.
        stop_ids: tokens that end it.
        is_serial: what it samples depends on its tokens through the host (penalties, a thinking budget, a grammar): its
            next pass is planned only when its last result is here.
        arrived_s: when it came, on the clock of the scheduler's `now`.
        deadline_s: when it must be done, on that clock.
    """

    __slots__ = (
        "accepted", "arrived_s", "cached_len", "computed_len", "constraint", "cut", "deadline_s", "drafted", "drafts",
        "extras",
        "finish_reason", "followers", "has_rules", "is_serial", "known_len", "leader", "limit_len", "logprobs",
        "match_lens", "num_in_flight", "num_overtaken", "num_retractions", "number", "phase", "prompt_len",
        "prompt_logprobs", "queued_s", "rank", "replayed", "request", "row", "scheduled_len", "seed", "stop_ids",
        "token_counts", "tokens", "weight_versions",
    )  # fmt: skip

    def __init__(
        self,
        request: Request,
        number: int,
        limit_len: int,
        stop_ids: frozenset[int],
        *,
        is_serial: bool = False,
        arrived_s: float = 0.0,
        deadline_s: float = math.inf,
    ) -> None:
        self.request = request
        self.number = number
        self.limit_len = limit_len
        self.stop_ids = stop_ids
        self.is_serial = is_serial
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.seed = secrets.randbits(63) if request.params.seed is None else request.params.seed
        self.has_rules = request.params.has_rules
        """Of its sampling: looked up in every pass."""
        self.tokens = list(request.prompt_ids)
        self.prompt_len = self.known_len = len(self.tokens)
        self.computed_len = self.scheduled_len = self.num_in_flight = 0
        self.drafts: tuple[int, ...] = ()
        """Guesses at the tokens after the last known one; set before planning, taken by the next plan."""
        self.extras: ExtrasBuffer | None = None
        """Set before it is queued, where rows have extras that are kept."""
        self.row: Row | None = None
        self.phase = Phase.WAITING
        self.finish_reason: FinishReason | None = None
        self.logprobs: list[TokenLogprobs] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.rank = (arrived_s, number)
        """The queue's: the smaller goes first."""
        self.num_overtaken = 0
        """How many later ones were admitted while this one did not fit."""
        self.leader: Sequence | None = None
        """Whose prompt this one waits for, to fork from it."""
        self.followers: list[Sequence] = []
        self.queued_s: float | None = None
        self.cached_len = 0
        self.match_lens = (0, 0)
        """Compressed and usable match at the first admission."""
        self.cut: Cut = "not admitted"
        self.replayed = self.num_retractions = self.drafted = self.accepted = 0
        self.weight_versions: list[int] = []
        self.constraint: Constraint | None = None
        """Set before it is queued, where its answer must fit a grammar."""
        self.token_counts: TokenCounts | None = None
        """The sampler's, where penalties look back on the tokens."""
        self.check()

    @property
    def total_len(self) -> int:
        """Tokens known: the prompt and what was generated."""
        return len(self.tokens)

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def pending_len(self) -> int:
        """Tokens whose rows are not even scheduled; 1 while decoding."""
        return self.known_len - self.scheduled_len

    @property
    def is_decoding(self) -> bool:
        """Whether only the last token is pending."""
        return self.phase is Phase.RUNNING and self.known_len - self.scheduled_len == 1

    def admit(self, row: Row, now_s: float, cut: Cut | None = None) -> None:
        """WAITING -> RUNNING, on a row whose first `row.committed_len` tokens need no computing.

        Args:
            cut: reason why no more was found, where it is not that of the row's match.
        """
        assert self.phase is Phase.WAITING, self.phase
        self.phase = Phase.RUNNING
        self.row = row
        self.computed_len = self.scheduled_len = row.committed_len
        self.replayed += max(0, row.stored_len - row.committed_len)
        if self.queued_s is None:
            self.queued_s = max(0.0, now_s - self.arrived_s)
            self.cached_len = row.committed_len
            self.match_lens = (row.match.compressed_len, row.match.usable_len)
            self.cut = row.match.cut if cut is None else cut
        self.check()

    def retract(self) -> None:
        """RUNNING -> WAITING: the row is given up, tokens stay. Nothing may be in flight."""
        assert self.phase is Phase.RUNNING and self.num_in_flight == 0, (self.phase, self.num_in_flight)
        self.phase = Phase.WAITING
        self.row = None
        self.computed_len = self.scheduled_len = 0
        self.known_len = len(self.tokens)
        self.drafts = ()
        self.num_retractions += 1
        self.check()

    def append(self, token_id: int, logprobs: TokenLogprobs | None = None, weight_version: int = 0) -> TokenEvent:
        """Adds a generated token."""
        assert self.phase is Phase.RUNNING, self.phase
        tokens = self.tokens
        index = len(tokens) - self.prompt_len
        tokens.append(token_id)
        assert len(tokens) <= self.limit_len, (len(tokens), self.limit_len)
        if logprobs is not None:
            self.logprobs.append(logprobs)
        versions = self.weight_versions
        if not versions or versions[-1] != weight_version:
            versions.append(weight_version)
        cached_len = None if index else self.cached_len
        name, drafted, accepted = self.request.request_id, self.drafted, self.accepted
        return TokenEvent(name, index, token_id, logprobs, weight_version, cached_len, drafted, accepted)

    @property
    def wants_whole_prompt(self) -> bool:
        """Whether log-probabilities of its prompt are still missing: then nothing of it may come from the cache."""
        return self.request.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len - 1

    @property
    def needs_extras(self) -> bool:
        """Whether only cached pages that have extras are of use."""
        return self.request.params.return_routes or self.request.params.return_picks

    def natural_end(self) -> FinishReason | None:
        """The reason to end after the last token, if there is one."""
        if self.tokens[-1] in self.stop_ids and len(self.tokens) > self.prompt_len:
            return "stop"
        is_last = len(self.tokens) >= self.limit_len
        if self.constraint is not None and self.constraint.has_ended(self.tokens, is_last=is_last):
            return "stop"
        return "length" if is_last else None

    def finish(self, reason: FinishReason, error: str | None = None, error_kind: ErrorKind = "engine") -> FinalOutput:
        """Any live phase -> DONE; the one final output. A pass in flight may still carry a row of it."""
        assert self.phase is not Phase.DONE, self.request.request_id
        self.phase = Phase.DONE
        self.finish_reason = reason
        self.row = None
        generated = tuple(self.tokens[self.prompt_len :])
        stopped = reason == "stop" and bool(generated) and generated[-1] in self.stop_ids
        params = self.request.params
        return FinalOutput(
            request_id=self.request.request_id,
            token_ids=generated,
            logprobs=None if params.logprobs is None else tuple(self.logprobs),
            finish_reason=reason,
            stop_token_id=generated[-1] if stopped else None,
            error=error,
            error_kind=error_kind if reason == "error" else None,
            prompt_len=self.prompt_len,
            cached_len=self.cached_len,
            report=self._report(),
            prompt_logprobs=None if params.prompt_logprobs is None else tuple(self.prompt_logprobs),
            extras=self._returned_extras(),
        )

    def _returned_extras(self) -> RowExtras | None:
        params = self.request.params
        if self.extras is None or not self.needs_extras:
            return None
        # The row of every token but the last was computed once, also where a retraction has given its entries up.
        found = self.extras.read(0, len(self.tokens) - 1 if self.num_generated else self.computed_len)
        return RowExtras(
            wide_routes(found.routes) if params.return_routes else None,
            wide_picks(found.picks) if params.return_picks else None,
        )

    def _report(self) -> RequestReport:
        compressed, usable = self.match_lens
        return RequestReport(
            prompt_len=self.prompt_len,
            compressed_match=compressed,
            usable_match=usable,
            cut=self.cut,
            replayed=self.replayed,
            queued_s=self.queued_s or 0.0,
            num_retractions=self.num_retractions,
            drafted=self.drafted,
            accepted=self.accepted,
            weight_versions=tuple(self.weight_versions),
        )

    def check(self) -> None:
        """Asserts the laws."""
        total = len(self.tokens)
        assert 0 <= self.computed_len <= self.scheduled_len <= self.known_len, (self.computed_len, self.scheduled_len)
        assert self.prompt_len <= total <= self.known_len <= self.limit_len, (total, self.known_len, self.limit_len)
        assert (self.phase is Phase.RUNNING) == (self.row is not None), self.phase
