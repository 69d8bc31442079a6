"""Who runs in the next pass. A pure object: queues and budgets in, a StepPlan out; no tensors, no clock of its own.

    plan = scheduler.plan(now_s)            # decide; memory for the plan's rows is taken
    scheduler.launched(plan)                # it is on its way: further plans may build on it
    events = scheduler.committed(plan, result)

Order. Every sequence has a rank (ranked_queue.py): priority and arrival in one number that never changes. A plan takes
decodes and verifies first, by rank; then prompts share what rows are left, beside decodes `prefill_chunk` at most
(prompt_rows.py): the first in rank, short ones, and waiting ones, which start with that (admission.py).

Room. Rows need pages and windows; a prompt's chunk and a run of drafts shrink to what there is. A sequence that can
not move at all takes back the memory of the last in rank (retraction.py), which waits to be continued, mostly from
what it left in the cache. Likewise, who waits with a higher priority takes back the memory of running ones with a
lower one, if that makes it fit.

Why it never stops: let F be the first in rank of all live sequences. If F runs and lacks room, everybody else can be
retracted for it, and alone it has room, as the cache holds one sequence of full length. If F waits, those who run
are finitely many tokens from their end, the first of them moves on as above, and at most `max_num_seqs` sequences
overtake F; when nobody runs, F starts. Each plan looks once at each running sequence, retracts each at most once, and
starts none in a plan that retracted one: bounded work.

Passes in flight: a sequence may be planned again before its last result is here. Its lengths are then upper bounds;
if it turns out to have ended, the rows on their way write to memory that is fenced until they have (cache/ids.py),
and their results are dropped. Sequences that are `is_serial` wait for their results, as do those with drafts.
"""

from collections import deque
from collections.abc import Hashable, Iterator

from benthic.cache.manager import CacheManager
from benthic.engine.admission import Admission
from benthic.engine.commitment import commit_result
from benthic.engine.deadlines import Deadlines
from benthic.engine.plan import ScheduledChunk, StepPlan, StepResult
from benthic.engine.prompt_rows import PromptRows
from benthic.engine.ranked_queue import RankedQueue, rank
from benthic.engine.request import ErrorKind, Event, FinalOutput, FinishReason
from benthic.engine.retraction import Retraction
from benthic.engine.sequence import Phase, Sequence


class Scheduler:
    """Sequences over a cache.

    Args:
        cache: room for one sequence of the longest allowed length is required.
        max_num_seqs: running sequences at most.
        max_batched_tokens: rows of a pass at most; more than `max_num_seqs`, so that prompts always advance.
        prefill_chunk: prompt rows at most in a pass that also decodes.
        admission_headroom: tokens that running sequences may still grow by when one is admitted.
        aging_s: seconds of waiting that are worth one point of priority.
        use_cache: whether prefixes are looked up and shared.
        namespace: what cached entries depend on besides tokens and salt: (fingerprint, weight version).
    """

    def __init__(
        self,
        cache: CacheManager,
        *,
        max_num_seqs: int,
        max_batched_tokens: int,
        prefill_chunk: int,
        admission_headroom: int = 256,
        aging_s: float = 30.0,
        use_cache: bool = True,
        namespace: tuple[Hashable, ...] = (),
    ) -> None:
        assert max_batched_tokens > max_num_seqs, (max_batched_tokens, max_num_seqs)
        self._cache = cache
        self._page_size = cache.geometry.page_size
        self._max_num_seqs = max_num_seqs
        self._max_batched_tokens = max_batched_tokens
        self._prefill_chunk = prefill_chunk
        self._aging_s = aging_s
        self._admission = Admission(cache, max_num_seqs=max_num_seqs, headroom=admission_headroom, use_cache=use_cache)
        self._admission.namespace = namespace
        self._running = RankedQueue()
        self._deadlines = Deadlines()
        self._leaders: list[Sequence] = []
        self._live: dict[str, Sequence] = {}
        self._in_flight: deque[int] = deque()
        self._step = 0
        self._retraction = Retraction(cache, self._running, self._in_flight, self._retract)
        self._prompt_rows = PromptRows(cache, self._admission, self._running, self._retraction, self._start)
        self.num_retractions = 0
        self.num_timeouts = 0

    @property
    def num_waiting(self) -> int:
        """Requests not yet admitted, or retracted."""
        return len(self._admission)

    @property
    def num_running(self) -> int:
        """Admitted requests."""
        return len(self._running)

    @property
    def namespace(self) -> tuple[Hashable, ...]:
        """See `Scheduler`; to be changed while nothing runs, after `retract_all`."""
        return self._admission.namespace

    @namespace.setter
    def namespace(self, namespace: tuple[Hashable, ...]) -> None:
        assert not self._running, "sequences run on the old weights"
        self._admission.namespace = namespace

    def sequences(self) -> Iterator[Sequence]:
        """All live sequences."""
        return iter(self._live.values())

    def drafting(self) -> list[Sequence]:
        """Those whose next row verifies drafts, if they get some (`Sequence.drafts`) before the next plan."""
        return [s for s in self._running if s.num_in_flight == 0 and s.is_decoding and s.known_len + 1 < s.limit_len]

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence. One that forks waits for its leader's prompt instead, if that is still to come."""
        request = sequence.request
        assert request.request_id not in self._live, request.request_id
        sequence.rank = rank(sequence, self._aging_s)
        leader = None if request.fork_of is None else self._live.get(request.fork_of)
        self._live[request.request_id] = sequence
        self._deadlines.add(sequence)
        self._admission.add(sequence, leader)
        if sequence.leader is not None and sequence.leader not in self._leaders:
            self._leaders.append(sequence.leader)

    def finish(
        self, sequence: Sequence, reason: FinishReason, error: str | None = None, error_kind: ErrorKind = "engine"
    ) -> FinalOutput:
        """Ends a live sequence at any moment, also with rows in flight, and frees what it holds."""
        if sequence.phase is Phase.RUNNING:
            assert sequence.row is not None
            self._running.remove(sequence)
            self._cache.close(sequence.row, finished=reason in ("stop", "length"))
            self._admission.memory_came_back()
        else:
            self._admission.remove(sequence)
        self._disband(sequence)
        self._deadlines.forget(sequence)
        del self._live[sequence.request.request_id]
        return sequence.finish(reason, error, error_kind)

    @property
    def next_deadline_s(self) -> float:
        """When the next live sequence times out; infinite where none has a deadline."""
        return self._deadlines.next_s()

    def time_out(self, now_s: float) -> list[FinalOutput]:
        """Ends the sequences whose deadline has passed."""
        late = self._deadlines.passed(now_s)
        self.num_timeouts += len(late)
        return [
            self.finish(
                sequence,
                "error",
                f"the request timed out after {now_s - sequence.arrived_s:.1f} s with {sequence.num_generated} tokens "
                f"generated; it had {sequence.deadline_s - sequence.arrived_s:g} s",
                "timeout",
            )
            for sequence in late
        ]

    def retract_all(self) -> None:
        """Makes every running sequence wait; nothing may be in flight. Tokens stay."""
        assert not self._in_flight, self._in_flight
        for sequence in list(self._running):
            self._retract(sequence)

    def plan(self, now_s: float = 0.0) -> StepPlan:
        """Decides the next pass and takes the memory for its rows.

        Empty if nothing is live, or if all that could run waits for results in flight.
        """
        chunks = self._plan(now_s)
        if not chunks and self._live and not self._in_flight:
            # Whoever was left out to make room, or for whom room was made, has his turn now.
            chunks = self._plan(now_s)
            assert chunks, "requests are live, and none can run"
        return StepPlan(tuple(chunks), self._step + 1)

    def launched(self, plan: StepPlan) -> None:
        """Counts a plan's rows as on their way; no other plan was made since. Not for an empty plan."""
        assert plan.chunks and plan.step == self._step + 1, (plan.step, self._step)
        self._step = plan.step
        self._in_flight.append(plan.step)
        self._cache.begin_pass(plan.step)
        for sequence, _, start, length, samples, drafts, _, _ in plan.chunks:
            end = start + length
            sequence.num_in_flight += 1
            sequence.scheduled_len = end
            if drafts:
                sequence.known_len = end
            elif samples and not sequence.is_serial and end + 1 < sequence.limit_len:
                sequence.known_len = end + 1

    def committed(self, plan: StepPlan, result: StepResult) -> list[Event]:
        """Takes in the oldest pass in flight: its tokens, and the sequences that end with them, in the plan's order."""
        step = self._in_flight.popleft()
        assert step == plan.step, (step, plan.step)
        self._cache.end_pass(step)
        return commit_result(plan, result, self._cache, self.finish)

    def _plan(self, now_s: float) -> list[ScheduledChunk]:
        leaving = self._retraction.begin_plan()
        if self._leaders:
            self._fork(now_s)
        chunks: list[ScheduledChunk] = []
        prompts = self._plan_decodes(chunks, leaving)
        candidates = self._admission.candidates(len(self._running))
        if prompts or candidates:
            budget = self._max_batched_tokens - sum([chunk.length for chunk in chunks])
            budget = min(budget, self._prefill_chunk) if chunks else budget
            self._prompt_rows.share(chunks, prompts, candidates, budget, now_s)
        if self._admission.is_blocked(len(self._running)) and not self._retraction.is_under_way:
            self._prefer_priority(chunks)
        return chunks

    def _plan_decodes(self, chunks: list[ScheduledChunk], leaving: Sequence | None) -> list[Sequence]:
        """Gives every decoding sequence its row, or rows; returns the running prompts."""
        prompts = []
        spare = -1
        for sequence in list(self._running):
            start = sequence.scheduled_len
            pending = sequence.known_len - start
            if pending != 1:
                if pending > 1 and sequence is not leaving:
                    prompts.append(sequence)
                continue
            row = sequence.row
            if row is None or sequence is leaving or sequence.followers:
                continue
            known = len(sequence.tokens)
            drafts = sequence.drafts
            if drafts:
                spare = self._spare_rows() if spare < 0 else spare
                drafts = drafts[: min(spare, sequence.limit_len - known - 1)] if start == known - 1 else ()
            end = start + 1 + len(drafts)
            if end > row.allocated_len:
                end = self._retraction.reach(sequence, end, chunks)
                if end <= start:
                    continue
                drafts = drafts[: end - start - 1]
            if drafts:
                spare -= len(drafts)
                sequence.drafts = ()
            samples = start + 1 < sequence.limit_len
            chunks.append(
                ScheduledChunk(sequence, row.index, start, end - start, samples, drafts, row.stored_len, start >= known)
            )
        return [sequence for sequence in prompts if sequence.row is not None]

    def _spare_rows(self) -> int:
        """Rows for drafts: what decodes and a chunk of prompts leave."""
        reserve = self._prefill_chunk if len(self._admission) or any(s.pending_len > 1 for s in self._running) else 0
        return max(0, self._max_batched_tokens - len(self._running) - reserve)

    def _start(self, sequence: Sequence, now_s: float) -> bool:
        if self._retraction.is_under_way or not self._admission.start(sequence, list(self._running), now_s):
            return False
        self._running.add(sequence)
        if sequence.followers and sequence.computed_len == sequence.prompt_len - 1:
            self._fork(now_s)
        return True

    def _fork(self, now_s: float) -> None:
        """Starts the followers of leaders that have come to their prompt's last row."""
        for leader in list(self._leaders):
            if not leader.followers:
                self._leaders.remove(leader)
                continue
            if leader.phase is not Phase.RUNNING or leader.num_in_flight or leader.computed_len < leader.prompt_len - 1:
                continue
            num_free = self._max_num_seqs - len(self._running)
            for follower in self._admission.fork_followers(leader, num_free, now_s):
                self._running.add(follower)
            self._leaders.remove(leader)

    def _disband(self, leader: Sequence) -> None:
        self._admission.free_followers(leader)
        if leader in self._leaders:
            self._leaders.remove(leader)

    def _retract(self, sequence: Sequence) -> None:
        row = sequence.row
        assert row is not None
        self._running.remove(sequence)
        self._cache.close(row, finished=False)
        self._disband(sequence)
        sequence.retract()
        self._admission.add(sequence)
        self._retraction.retracted(self._step)
        self.num_retractions += 1

    def _prefer_priority(self, chunks: list[ScheduledChunk]) -> None:
        """Takes memory back from the last running one, if a waiting one of higher priority comes to fit by that."""
        first = self._admission.first()
        if first is None or not self._running:
            return
        lower = [s for s in self._running if s.rank > first.rank and s.request.priority < first.request.priority]
        if not lower or lower[-1] is not self._running.last:
            return
        pages = sum(s.row.allocated_len for s in lower if s.row is not None) // self._page_size
        if self._admission.pages_to_come(first) <= self._cache.available_pages + pages:
            self._retraction.take_back(first, chunks)
