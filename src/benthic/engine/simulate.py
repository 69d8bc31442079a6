"""The real scheduler and the real cache bookkeeping over a model that is only a clock: a discrete-event simulation.

A pass costs fixed + per row + per page of context that its sequences read. Token p of a sequence is a hash of its
seed and p, so that whatever happens to it, its tokens can be known beforehand. Guesses are right with a given
probability. With `overlap_steps` = 1 a pass is planned and launched while the one before runs.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from benthic.cache.manager import CacheManager
from benthic.cache.work import CacheWork
from benthic.engine.plan import SampledToken, ScheduledChunk, StepPlan, StepResult
from benthic.engine.request import Event, FinalOutput, TokenEvent
from benthic.engine.scheduler import Scheduler
from benthic.engine.sequence import Sequence
from benthic.engine.synthetic_trace import VOCAB_SIZE, Arrival

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def synthetic_token(seed: int, position: int) -> int:
    """What the simulated model gives at a position: a hash of the two numbers alone."""
    value = (seed * _GOLDEN + (position + 1) * 0xBF58476D1CE4E5B9) & _MASK
    value = (value ^ (value >> 29)) * 0x94D049BB133111EB & _MASK
    return (value ^ (value >> 32)) % VOCAB_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Seconds of a pass."""

    fixed_s: float = 5e-3
    row_s: float = 2e-5
    page_s: float = 1e-6

    def pass_s(self, plan: StepPlan, page_size: int) -> float:
        """The whole pass."""
        pages = sum((chunk.start + chunk.length) // page_size for chunk in plan.chunks)
        return self.fixed_s + self.row_s * plan.num_rows + self.page_s * pages


class SimulatedModel(Protocol):
    """Who computes the passes."""

    def launch(self, plan: StepPlan, work: CacheWork) -> None:
        """A pass begins, after the cache's device work; passes end in the order in which they began."""
        ...

    def result(self, plan: StepPlan) -> StepResult:
        """The pass ends: what it gives."""
        ...


class HashModel:
    """Tokens are hashes of seed and position; nothing is kept."""

    def launch(self, plan: StepPlan, work: CacheWork) -> None:
        """Nothing to do."""

    def result(self, plan: StepPlan) -> StepResult:
        """See `simulated_result`."""
        return simulated_result(plan)


@dataclass(slots=True)
class Timeline:
    """One request's fate on the simulated clock."""

    arrived_s: float
    priority: int
    first_token_s: float | None = None
    last_token_s: float | None = None
    ended_s: float | None = None
    max_gap_s: float = 0.0
    """Longest time without a token, from the first token on."""
    final: FinalOutput | None = None
    tokens: list[int] = field(default_factory=list)


class Percentiles(NamedTuple):
    """Of one quantity over all requests that have it; NaN if none has."""

    p50: float
    p95: float
    worst: float


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """What users would have seen; times in seconds."""

    timelines: dict[str, Timeline]
    duration_s: float
    num_steps: int
    num_rows: int
    num_retractions: int
    num_timeouts: int
    first_token_s: Percentiles
    per_token_s: Percentiles
    queued_s: Percentiles
    longest_gap_s: float
    """Longest time that a request went without a token after its first."""
    hit_rate: float
    """Share of prompt tokens that were found and not computed."""
    accepted: float
    """Share of draft tokens that were right; NaN without drafts."""


class Simulation:
    """Plays a trace.

    Args:
        scheduler: over `cache`, with nothing in it.
        max_len: prompt and answer together at most.
        overlap_steps: passes in flight while the next is planned: 0 or 1.
        draft_len: tokens guessed ahead at most; sequences are then serial.
        hit_share: probability that a guess is right.
        check: called after each step, for laws.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: CacheManager,
        *,
        max_len: int,
        costs: CostModel | None = None,
        model: SimulatedModel | None = None,
        overlap_steps: int = 0,
        draft_len: int = 0,
        hit_share: float = 0.7,
        check: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._max_len = max_len
        self._costs = costs or CostModel()
        self._model = model or HashModel()
        self._overlap_steps = overlap_steps
        self._draft_len = draft_len
        self._hit_share = hit_share
        self._check = check
        self._now_s = self._free_s = 0.0
        self._in_flight: deque[tuple[float, StepPlan]] = deque()
        self._timelines: dict[str, Timeline] = {}
        self._cancels: list[tuple[float, str]] = []
        self._live: dict[str, Sequence] = {}
        self._num_steps = self._num_rows = 0

    def run(self, trace: Seq[Arrival]) -> SimulationReport:
        """Plays a trace to the end of its last request."""
        todo = deque(enumerate(trace))
        while todo or self._live or self._in_flight:
            self._let_in(todo)
            self._let_go()
            if not self._step() and (todo or self._live):
                self._now_s = max(self._now_s, self._next_event_s(todo))
        return self._report()

    def _let_in(self, todo: deque[tuple[int, Arrival]]) -> None:
        while todo and todo[0][1].at_s <= self._now_s:
            number, arrival = todo.popleft()
            request, at_s = arrival.request, arrival.at_s
            wanted = request.params.max_tokens
            limit_len = min(self._max_len, len(request.prompt_ids) + (self._max_len if wanted is None else wanted))
            sequence = Sequence(
                request,
                number,
                limit_len,
                frozenset(request.params.stop_token_ids),
                is_serial=arrival.is_serial or self._draft_len > 0,
                arrived_s=at_s,
                deadline_s=math.inf if request.timeout_s is None else at_s + request.timeout_s,
            )
            self._timelines[request.request_id] = Timeline(at_s, request.priority)
            self._live[request.request_id] = sequence
            self._scheduler.add(sequence)
            if arrival.cancel_s is not None:
                heapq.heappush(self._cancels, (arrival.cancel_s, request.request_id))

    def _let_go(self) -> None:
        self._take(self._scheduler.time_out(self._now_s))
        while self._cancels and self._cancels[0][0] <= self._now_s:
            _, name = heapq.heappop(self._cancels)
            if name in self._live:
                self._take([self._scheduler.finish(self._live[name], "cancelled")])

    def _step(self) -> bool:
        """One turn of the engine's loop; False if there was nothing to do."""
        if self._draft_len:
            for sequence in self._scheduler.drafting():
                sequence.drafts = self._guesses(sequence)
        plan = self._scheduler.plan(self._now_s)
        work = self._cache.take_work()
        if plan.chunks:
            self._launch(plan, work)
        is_due = bool(self._in_flight) and (len(self._in_flight) > self._overlap_steps or not plan.chunks)
        if is_due:
            self._collect()
        if self._check is not None:
            self._check(plan)
        return is_due or bool(plan.chunks)

    def _launch(self, plan: StepPlan, work: CacheWork) -> None:
        self._model.launch(plan, work)
        self._scheduler.launched(plan)
        start_s = max(self._now_s, self._free_s)
        self._free_s = start_s + self._costs.pass_s(plan, self._cache.geometry.page_size)
        self._in_flight.append((self._free_s, plan))
        self._num_steps += 1
        self._num_rows += plan.num_rows

    def _collect(self) -> None:
        ended_s, plan = self._in_flight.popleft()
        self._now_s = max(self._now_s, ended_s)
        self._take(self._scheduler.committed(plan, self._model.result(plan)))

    def _guesses(self, sequence: Sequence) -> tuple[int, ...]:
        """Right ones with the chance that was asked for, decided by the position alone."""
        first, seed = sequence.total_len, sequence.seed
        return tuple(
            synthetic_token(seed, p) ^ (synthetic_token(seed ^ 1, p) >= self._hit_share * VOCAB_SIZE)
            for p in range(first, first + self._draft_len)
        )

    def _take(self, events: Seq[Event]) -> None:
        for event in events:
            line = self._timelines[event.request_id]
            if isinstance(event, TokenEvent):
                if line.first_token_s is None:
                    line.first_token_s = self._now_s
                elif line.last_token_s is not None:
                    line.max_gap_s = max(line.max_gap_s, self._now_s - line.last_token_s)
                line.last_token_s = self._now_s
                assert event.index == len(line.tokens), (event, line.tokens)
                line.tokens.append(event.token_id)
            else:
                assert line.final is None, f"{event.request_id} ended twice"
                line.final, line.ended_s = event, self._now_s
                del self._live[event.request_id]

    def _next_event_s(self, todo: deque[tuple[int, Arrival]]) -> float:
        times = [todo[0][1].at_s] if todo else []
        times += [self._cancels[0][0]] if self._cancels else []
        times += [sequence.deadline_s for sequence in self._live.values()]
        assert times and min(times) < math.inf, "requests are live and nothing will ever happen"
        return min(times)

    def _report(self) -> SimulationReport:
        lines = list(self._timelines.values())
        finals = [line.final for line in lines if line.final is not None]
        reports = [final.report for final in finals if final.report is not None]
        prompt_len = sum(final.prompt_len for final in finals) or 1
        drafted = sum(report.drafted for report in reports)
        return SimulationReport(
            timelines=self._timelines,
            duration_s=self._now_s,
            num_steps=self._num_steps,
            num_rows=self._num_rows,
            num_retractions=self._scheduler.num_retractions,
            num_timeouts=self._scheduler.num_timeouts,
            first_token_s=_percentiles([x.first_token_s - x.arrived_s for x in lines if x.first_token_s is not None]),
            per_token_s=_percentiles([_per_token_s(line) for line in lines if len(line.tokens) > 1]),
            queued_s=_percentiles([report.queued_s for report in reports]),
            longest_gap_s=max((line.max_gap_s for line in lines), default=0.0),
            hit_rate=sum(final.cached_len for final in finals) / prompt_len,
            accepted=sum(report.accepted for report in reports) / drafted if drafted else math.nan,
        )


def simulated_result(plan: StepPlan) -> StepResult:
    """What the simulated model gives for a plan."""
    return StepResult(tuple(_run(chunk) for chunk in plan.chunks if chunk.samples))


def _run(chunk: ScheduledChunk) -> tuple[SampledToken, ...]:
    """The token after the last known one, and one more for each guess that was right."""
    seed = chunk.sequence.seed
    first = chunk.start + chunk.length - len(chunk.drafts)
    tokens = [synthetic_token(seed, first)]
    for place, draft in enumerate(chunk.drafts):
        if draft != tokens[-1]:
            break
        tokens.append(synthetic_token(seed, first + place + 1))
    return tuple(map(SampledToken, tokens))


def _per_token_s(line: Timeline) -> float:
    assert line.first_token_s is not None and line.last_token_s is not None
    return (line.last_token_s - line.first_token_s) / (len(line.tokens) - 1)


def _percentiles(values: list[float]) -> Percentiles:
    if not values:
        return Percentiles(math.nan, math.nan, math.nan)
    ranked = sorted(values)
    return Percentiles(ranked[(len(ranked) - 1) // 2], ranked[int(0.95 * (len(ranked) - 1))], ranked[-1])
