"""Memory for rows, and who gives it back to whom.

A sequence that lacks room takes it from the last in rank, never from one before itself. The victim is retracted: it
gives up its row and waits. Two things take time, and nobody else is retracted meanwhile, for that would free nothing
sooner: a victim with rows in flight, or in the plan that is being made, is first left out of the next plan; and what a
retraction frees while passes are in flight can be used when they have ended.
"""

from collections import deque
from collections.abc import Callable, Iterable

from benthic.cache.manager import CacheManager
from benthic.engine.plan import ScheduledChunk
from benthic.engine.ranked_queue import RankedQueue
from benthic.engine.sequence import Sequence


class Retraction:
    """Takes memory for running sequences, from the cache or from each other.

    Args:
        running: those that hold memory.
        in_flight: steps of the passes in flight, oldest first; kept by the scheduler.
        retract: makes a running sequence wait.
    """

    def __init__(
        self,
        cache: CacheManager,
        running: RankedQueue,
        in_flight: deque[int],
        retract: Callable[[Sequence], None],
    ) -> None:
        self._cache = cache
        self._running = running
        self._in_flight = in_flight
        self._retract = retract
        self._leaving: Sequence | None = None
        self._settles_with = 0
        self._has_retracted = False

    @property
    def is_under_way(self) -> bool:
        """Whether the plan that is being made took memory from somebody, or will."""
        return self._has_retracted or self._leaving is not None

    def begin_plan(self) -> Sequence | None:
        """A plan is begun; returns the sequence that is to be left out of it."""
        leaving, self._leaving = self._leaving, None
        self._has_retracted = False
        return leaving

    def reach(self, sequence: Sequence, end: int, chunks: Iterable[ScheduledChunk]) -> int:
        """Takes memory for positions up to `end`, or as many as there is room for.

        Args:
            chunks: those of the plan so far.

        Returns:
            The position reached; `sequence.scheduled_len` where there is no room at all in this plan.
        """
        row = sequence.row
        assert row is not None
        reached = self._cache.room(row, end)
        while reached <= sequence.scheduled_len:
            if not self.take_back(sequence, chunks):
                return sequence.scheduled_len
            reached = self._cache.room(row, end)
        self._cache.grow(row, reached)
        return reached

    def take_back(self, sequence: Sequence, chunks: Iterable[ScheduledChunk]) -> bool:
        """Takes memory back for `sequence` from the last in rank; whether there is more of it now."""
        victim = self._running.last
        is_unsettled = bool(self._in_flight) and self._settles_with >= self._in_flight[0]
        if victim.rank <= sequence.rank or is_unsettled:
            return False
        if victim.num_in_flight or any(chunk.sequence is victim for chunk in chunks):
            self._leaving = victim
            return False
        self._retract(victim)
        return not self._in_flight

    def retracted(self, step: int) -> None:
        """A sequence was retracted after the launch of pass `step`."""
        self._has_retracted = True
        self._settles_with = step
