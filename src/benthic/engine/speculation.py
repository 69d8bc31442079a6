"""Speculation between passes: how many drafts each request gets next, and what came of the last ones."""

from collections.abc import Sequence as Seq
from typing import Protocol

from benthic.cache.row import Row
from benthic.engine.drafting import DepthPolicy, Drafter
from benthic.engine.plan import ScheduledChunk, StepPlan, StepResult
from benthic.engine.sequence import Phase, Sequence


class RoomOwner(Protocol):
    """What speculation needs of the cache manager."""

    def room(self, row: Row, want_len: int) -> int: ...
    def grow(self, row: Row, new_len: int) -> None: ...


class Speculation:
    """A drafter with its depth policy. With a depth of 0 everything here does nothing."""

    def __init__(self, drafter: Drafter, policy: DepthPolicy) -> None:
        self._drafter, self._policy = drafter, policy

    @property
    def is_on(self) -> bool:
        """Whether requests may get drafts."""
        return self._policy.max_depth > 0

    def depths(self, plan: StepPlan, cache: RoomOwner) -> tuple[int, ...]:
        """Drafts wanted after the pass, for each chunk that samples.

        A chain of drafts stores entries ahead of the sequence, so room is taken for them; where there is none, the
        request gets fewer.
        """
        if not self.is_on:
            return ()
        sampling = plan.sampling
        chosen = self._policy.choose([chunk.sequence.request.request_id for chunk in sampling])
        depths = []
        for chunk, depth in zip(sampling, chosen, strict=True):
            # After the pass one token is new at least, and the last token of a request needs no draft.
            end = chunk.start + chunk.length
            depth = max(0, min(depth, chunk.sequence.limit_len - (end - len(chunk.drafts)) - 2))
            depths.append(self._with_room(chunk, end, depth, cache) if self._drafter.sees_passes else depth)
        return tuple(depths)

    def take(self, plan: StepPlan, depths: Seq[int], result: StepResult) -> None:
        """Learns from a pass that was committed, and gives its running sequences their next drafts."""
        if not depths:
            return
        for place, (chunk, run) in enumerate(zip(plan.sampling, result.sampled, strict=True)):
            self._policy.observe(chunk.sequence.request.request_id, len(chunk.drafts), len(run) - 1)
            if chunk.sequence.phase is Phase.RUNNING:
                self._propose(chunk.sequence, depths[place], result.drafts[place] if result.drafts else ())
        self._observe_time(plan, depths, result.seconds)

    def _propose(self, sequence: Sequence, depth: int, observed: Seq[int]) -> None:
        depth = min(depth, sequence.limit_len - sequence.total_len - 1)
        sequence.drafts = ()
        if depth > 0:
            sequence.drafts = self._drafter.propose(sequence.request.request_id, sequence.tokens, depth, observed)
            assert len(sequence.drafts) <= depth, (len(sequence.drafts), depth)
        if sequence.drafts and sequence.constraint is not None:
            # What its grammar refuses would only be computed in vain.
            sequence.drafts = sequence.drafts[: sequence.constraint.num_fitting(sequence.tokens, sequence.drafts)]

    def _observe_time(self, plan: StepPlan, depths: Seq[int], seconds: float) -> None:
        """Counts the time of a pass, unless it also computed prompts."""
        if all(chunk.samples and chunk.length == 1 + len(chunk.drafts) for chunk in plan.chunks):
            chain_len = max(depths, default=0) if self._drafter.sees_passes else 0
            self._policy.times.observe(plan.num_rows, chain_len, seconds)

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._drafter.forget(request_id)
        self._policy.forget(request_id)

    def _with_room(self, chunk: ScheduledChunk, end: int, depth: int, cache: RoomOwner) -> int:
        """Draft i > 1 is guessed from a row at position end + i - 2 at most."""
        row = chunk.sequence.row
        assert row is not None, chunk.sequence.request.request_id
        want_len = end + depth - 1
        if depth <= 1 or want_len <= row.allocated_len:
            return depth
        reached = cache.room(row, want_len)
        if reached > row.allocated_len:
            cache.grow(row, reached)
        return min(depth, max(1, reached - end + 1))
