"""Who runs in the next pass. A pure object: queues and budgets in, a StepPlan out; no tensors, no clock.

Policy: every decoding sequence gets its row first, oldest first; what is left of the row budget goes to prompts, oldest
first, in chunks; then waiting requests are admitted in order of arrival while their known tokens fit.

Room: a sequence takes the entry blocks of its known tokens when admitted, and window blocks are sized never to run
short, so only a decoding sequence can lack room. Then the youngest running sequence is retracted: it gives up its
blocks and waits, at the front, to be computed again (exactly, so nobody can tell). The oldest is never retracted for
a younger, and one full context always fits, so the oldest always advances: no starvation, no deadlock. A plan
retracts each sequence at most once and looks at each queue once: bounded work.
"""

from collections import deque
from collections.abc import Iterable

from benthic.cache.block_manager import CacheManager
from benthic.engine.plan import ScheduledChunk, StepPlan
from benthic.engine.sequence import Phase, Sequence


class Scheduler:
    """Queues of sequences over a cache.

    Args:
        cache: owns the blocks; room for one context of the longest allowed sequence is required.
        max_num_seqs: running sequences at most.
        max_batched_tokens: rows of a pass at most; more than `max_num_seqs`, so that prompts always advance.
        prefill_chunk: prompt rows at most in a pass that also decodes.
        admission_headroom: tokens that running sequences may still grow by when one is admitted.
    """

    def __init__(
        self,
        cache: CacheManager,
        *,
        max_num_seqs: int,
        max_batched_tokens: int,
        prefill_chunk: int,
        admission_headroom: int = 256,
    ) -> None:
        assert max_batched_tokens > max_num_seqs, (max_batched_tokens, max_num_seqs)
        self._cache = cache
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._prefill_chunk = prefill_chunk
        self._headroom = admission_headroom
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.num_retractions = 0

    @property
    def num_waiting(self) -> int:
        """Requests not yet admitted, or retracted."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Admitted requests."""
        return len(self._running)

    def sequences(self) -> Iterable[Sequence]:
        """All live sequences, running ones first."""
        return (*self._running, *self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence behind all others."""
        self._waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a live sequence and frees what it holds."""
        if sequence.phase is Phase.RUNNING:
            self._running.remove(sequence)
            self._cache.release(sequence.number)
        else:
            self._waiting.remove(sequence)

    def plan(self) -> StepPlan:
        """Decides the next pass and reserves its blocks. Empty only if nothing is live."""
        chunks = self._plan_decodes()
        budget = self._max_batched_tokens - len(chunks)
        if chunks:
            budget = min(budget, self._prefill_chunk)
        for sequence in self._running:
            if sequence.pending_len > 1 and budget > 0:
                budget -= self._schedule(chunks, sequence, budget)
        while budget > 0 and self._admit_next():
            budget -= self._schedule(chunks, self._running[-1], budget)
        return StepPlan(tuple(chunks))

    def commit(self, chunk: ScheduledChunk) -> None:
        """Counts a chunk as computed and frees the window blocks that nobody reads any more."""
        chunk.sequence.advance(chunk.length)
        self._cache.slide(chunk.sequence.number, chunk.sequence.computed_len)

    def _plan_decodes(self) -> list[ScheduledChunk]:
        chunks: list[ScheduledChunk] = []
        for sequence in [s for s in self._running if s.is_decoding]:
            if sequence.phase is Phase.RUNNING and self._make_room(sequence):
                self._schedule(chunks, sequence, 1)
        return chunks

    def _make_room(self, sequence: Sequence) -> bool:
        """Retracts the youngest sequences until `sequence` can take one more token; False if it was one of them."""
        while not self._cache.can_grow(sequence.number, sequence.total_len):
            victim = self._running[-1]
            self._retract(victim)
            if victim is sequence:
                return False
        return True

    def _retract(self, sequence: Sequence) -> None:
        self._running.remove(sequence)
        self._cache.release(sequence.number)
        sequence.retract()
        self._waiting.appendleft(sequence)
        self.num_retractions += 1

    def _admit_next(self) -> bool:
        """Moves the first waiting sequence to the running ones, if it fits."""
        if not self._waiting or len(self._running) >= self._max_num_seqs:
            return False
        sequence = self._waiting[0]
        expected = {s.number: self._expected_len(s) for s in self._running}
        if not self._cache.can_open(self._expected_len(sequence), expected):
            return False
        self._waiting.popleft()
        self._cache.open(sequence.number, sequence.total_len)
        sequence.admit()
        assert not self._running or self._running[-1].number < sequence.number, "admission is out of order"
        self._running.append(sequence)
        return True

    def _expected_len(self, sequence: Sequence) -> int:
        """Where a sequence will be soon: so much room is left for it, or it would be retracted at once."""
        return min(sequence.total_len + self._headroom, sequence.limit_len)

    def _schedule(self, chunks: list[ScheduledChunk], sequence: Sequence, budget: int) -> int:
        length = min(sequence.pending_len, budget)
        end = sequence.computed_len + length
        self._cache.grow(sequence.number, end)
        chunks.append(ScheduledChunk(sequence, sequence.computed_len, length, samples=end == sequence.total_len))
        return length
