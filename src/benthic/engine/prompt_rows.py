"""Which prompts are computed in a pass, and how much of each.

The first in rank gets half of the rows, the others the rest: higher priority and fewer missing tokens first. What they
do not need goes back to the first. So the first always moves on, and a short prompt never waits for a long one to end.
The others may be waiting ones, which start when they get their first rows; one that waits does not start while another
is computing the very page that it needs next.
"""

from collections.abc import Callable

from benthic.cache.manager import CacheManager
from benthic.engine.admission import Admission
from benthic.engine.plan import ScheduledChunk
from benthic.engine.ranked_queue import RankedQueue
from benthic.engine.retraction import Retraction
from benthic.engine.sequence import Phase, Sequence

MIN_ROWS = 16
"""No prompt is started for fewer rows, unless it needs no more."""


class PromptRows:
    """Shares a pass's rows among prompts.

    Args:
        running: those that hold memory.
        start: moves a waiting sequence to the running ones, if it fits now.
    """

    def __init__(
        self,
        cache: CacheManager,
        admission: Admission,
        running: RankedQueue,
        retraction: Retraction,
        start: Callable[[Sequence, float], bool],
    ) -> None:
        self._cache = cache
        self._page_size = cache.geometry.page_size
        self._admission = admission
        self._running = running
        self._retraction = retraction
        self._start = start

    def share(
        self,
        chunks: list[ScheduledChunk],
        prompts: list[Sequence],
        candidates: list[Sequence],
        budget: int,
        now_s: float,
    ) -> None:
        """Adds chunks of running prompts and waiting candidates, `budget` rows at most; one of them must be given."""
        ranked = sorted([*prompts, *candidates], key=lambda sequence: sequence.rank)
        first, others = ranked[0], ranked[1:]
        others.sort(key=lambda sequence: (-sequence.request.priority, sequence.pending_len))
        place = len(chunks)
        share = budget - budget // 2 if others else budget
        rest = budget - self._schedule(chunks, first, share, now_s)
        for sequence in others:
            if rest <= 0:
                break
            is_small = rest < min(MIN_ROWS, sequence.pending_len)
            if sequence.phase is Phase.RUNNING or not (is_small or self._is_anticipated(sequence, ranked)):
                rest -= self._schedule(chunks, sequence, rest, now_s)
        if rest > 0 and len(chunks) > place and chunks[place].sequence is first:
            chunks[place] = self._lengthen(chunks[place], rest, chunks)

    def _is_anticipated(self, sequence: Sequence, prompts: list[Sequence]) -> bool:
        """Whether a running prompt is at a page of the same tokens: soon `sequence` can take that from the cache.

        Only that page is compared. Should what precedes it differ, a few steps are lost.
        """
        shares, size = self._admission.shares_cache, self._page_size
        if not shares(sequence):
            return False
        for other in prompts:
            begin = other.computed_len // size * size
            if other.phase is Phase.RUNNING and begin + size < sequence.total_len and shares(other):
                is_same_page = sequence.tokens[begin : begin + size] == other.tokens[begin : begin + size]
                if is_same_page and other.request.cache_salt == sequence.request.cache_salt:
                    return True
        return False

    def _schedule(self, chunks: list[ScheduledChunk], sequence: Sequence, budget: int, now_s: float) -> int:
        """Schedules up to `budget` rows of a prompt, starting it if it waits; how many were scheduled."""
        if sequence.phase is Phase.WAITING and not self._start(sequence, now_s):
            return 0
        start, row = sequence.scheduled_len, sequence.row
        if row is None:
            return 0
        end = self._prompt_end(sequence, start, budget, chunks)
        if end <= start:
            return 0
        chunks.append(
            ScheduledChunk(sequence, row.index, start, end - start, _samples(sequence, end), (), row.stored_len)
        )
        return end - start

    def _lengthen(self, chunk: ScheduledChunk, budget: int, chunks: list[ScheduledChunk]) -> ScheduledChunk:
        start, end = chunk.start, chunk.start + chunk.length
        end = max(end, self._prompt_end(chunk.sequence, start, chunk.length + budget, chunks))
        return chunk._replace(length=end - start, samples=_samples(chunk.sequence, end))

    def _prompt_end(self, sequence: Sequence, start: int, budget: int, chunks: list[ScheduledChunk]) -> int:
        """How far a prompt's chunk from `start` goes: by budget, by memory, and by who forks before its last row."""
        end = min(sequence.known_len, start + budget)
        if sequence.followers:
            end = min(end, sequence.prompt_len - 1)
        row = sequence.row
        assert row is not None
        if end > row.allocated_len:
            # A chunk needs all its windows at once and gives most back when it is done: decodes keep theirs.
            windows = self._cache.available_windows - len(self._running)
            most = row.allocated_len + max(1, windows) * self._page_size
            end = self._retraction.reach(sequence, min(end, most), chunks) if end > start else end
        return end


def _samples(sequence: Sequence, end: int) -> bool:
    """Whether a chunk that ends there gives a token: at the last known one, unless no more are wanted."""
    return end == sequence.known_len < sequence.limit_len
