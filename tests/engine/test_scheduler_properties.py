"""Random traffic over small caches: laws that hold in every step, and ends that every request comes to."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benthic.engine.plan import StepPlan, StepResult
from benthic.engine.request import FinalOutput, TokenEvent
from benthic.engine.sequence import Phase, Sequence
from benthic.engine.simulate import Simulation, synthetic_token
from benthic.engine.synthetic_trace import Arrival, TraceConfig, synthetic_trace
from tests.engine.fingerprint_model import FingerprintModel
from tests.engine.scheduling import MAX_LEN, cache_of, is_empty, prompt_of, scheduler_of, sequence_of

PATIENCE = 4
"""Plans that the first in rank may have to wait, running: a victim is left out, retracted, and its memory settles."""

traces = st.builds(
    TraceConfig,
    num_requests=st.integers(1, 25),
    rate_per_s=st.sampled_from([1.0, 10.0, 100.0]),
    burst=st.integers(1, 8),
    prompt_len=st.tuples(st.integers(1, 20), st.integers(20, 300)),
    output_len=st.tuples(st.integers(1, 10), st.integers(10, 300)),
    num_prefixes=st.integers(0, 2),
    prefix_len=st.integers(0, 90),
    priorities=st.sampled_from([(0,), (0, 1), (-5, 0, 5)]),
    abort_share=st.sampled_from([0.0, 0.3, 1.0]),
    abort_within_s=st.sampled_from([0.01, 0.5, 3.0]),
    timeout_share=st.sampled_from([0.0, 0.5]),
    fork_share=st.sampled_from([0.0, 0.5]),
    serial_share=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 1 << 30),
)
memory = st.fixed_dictionaries(
    {
        "pages": st.integers(25, 60),
        "windows": st.integers(2, 40),
        "rows": st.integers(1, 8),
        "policy": st.sampled_from(["boundaries", "every_page", "none"]),
    }
)
budgets = st.fixed_dictionaries(
    {
        "max_batched_tokens": st.integers(9, 200),
        "prefill_chunk": st.integers(1, 100),
        "admission_headroom": st.sampled_from([0, 16, 100]),
        "aging_s": st.sampled_from([0.1, 1.0, 30.0]),
    }
)


def play(
    trace: list[Arrival], memory: dict[str, Any], budgets: dict[str, Any], overlap_steps: int, draft_len: int
) -> None:
    """Plays a trace and asserts everything that must hold."""
    cache = cache_of(**memory, draft_len=draft_len)
    scheduler = scheduler_of(cache, **budgets)
    waited = Counter[int]()

    def check(plan: StepPlan) -> None:
        cache.check()
        planned = [chunk.sequence.number for chunk in plan.chunks]
        assert len(set(planned)) == len(planned) <= memory["rows"]
        assert plan.num_rows <= budgets["max_batched_tokens"]
        live = sorted(scheduler.sequences(), key=lambda sequence: sequence.rank)
        for sequence in live:
            sequence.check()
        if live and live[0].phase is Phase.RUNNING:
            first = live[0].number
            waited[first] = 0 if first in planned else waited[first] + 1
            assert waited[first] <= PATIENCE, "the first in rank stands still"

    simulation = Simulation(
        scheduler,
        cache,
        max_len=MAX_LEN,
        model=FingerprintModel(cache),
        overlap_steps=overlap_steps,
        draft_len=draft_len,
        check=check,
    )
    report = simulation.run(trace)
    for arrival in trace:
        request, line = arrival.request, report.timelines[arrival.request.request_id]
        prompt_len = len(request.prompt_ids)
        expected = [synthetic_token(request.params.seed or 0, prompt_len + place) for place in range(len(line.tokens))]
        assert line.final is not None
        assert line.tokens == list(line.final.token_ids) == expected
        if line.final.finish_reason == "length":
            assert len(line.tokens) == min(request.params.max_tokens or 0, MAX_LEN - prompt_len)
        else:
            assert arrival.cancel_s is not None or request.timeout_s is not None
    assert is_empty(cache)
    cache.flush()
    assert cache.stats().pages.free == memory["pages"]
    assert cache.stats().windows.free == memory["windows"]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(traces, memory, budgets, st.integers(0, 1), st.sampled_from([0, 0, 1, 4]))
def test_every_request_ends_once_with_its_own_tokens_and_all_memory_comes_back(
    config: TraceConfig, memory: dict[str, Any], budgets: dict[str, Any], overlap_steps: int, draft_len: int
) -> None:
    play(synthetic_trace(config), memory, budgets, overlap_steps, draft_len)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
@settings(max_examples=3000, deadline=None, suppress_health_check=list(HealthCheck))
@given(traces, memory, budgets, st.integers(0, 1), st.sampled_from([0, 0, 1, 4]))
def test_every_request_ends_once_with_its_own_tokens_in_thousands_of_traces(
    config: TraceConfig, memory: dict[str, Any], budgets: dict[str, Any], overlap_steps: int, draft_len: int
) -> None:
    play(synthetic_trace(config), memory, budgets, overlap_steps, draft_len)


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of arrivals, ends, plans, results, time-outs and weight updates."""

    @initialize(
        pages=st.integers(25, 40),
        windows=st.integers(2, 20),
        rows=st.integers(1, 5),
        budget=st.integers(6, 100),
        headroom=st.sampled_from([0, 32]),
        retention=st.sampled_from(["boundaries", "none"]),
    )
    def build(self, pages: int, windows: int, rows: int, budget: int, headroom: int, retention: str) -> None:
        self.cache = cache_of(pages, windows, rows, draft_len=4, policy=retention)
        self.scheduler = scheduler_of(
            self.cache, max_batched_tokens=budget, prefill_chunk=20, admission_headroom=headroom, namespace=("w", 0)
        )
        self.model = FingerprintModel(self.cache)
        self.in_flight: list[tuple[StepPlan, int]] = []
        self.live: dict[str, Sequence] = {}
        self.tokens: dict[str, list[int]] = {}
        self.number = self.version = 0
        self.now_s = 0.0

    @rule(
        length=st.integers(1, 200),
        max_tokens=st.integers(1, 150),
        family=st.integers(0, 2),
        priority=st.sampled_from([0, 0, 3]),
        is_serial=st.booleans(),
        follows=st.booleans(),
        timeout_s=st.sampled_from([2.0, float("inf")]),
    )
    def add(
        self,
        length: int,
        max_tokens: int,
        family: int,
        priority: int,
        is_serial: bool,
        follows: bool,
        timeout_s: float,
    ) -> None:
        prompt = prompt_of(family, length)
        fork_of = None
        if follows and self.live:
            leader = list(self.live.values())[-1]
            prompt, fork_of, priority = leader.request.prompt_ids, leader.request.request_id, leader.request.priority
        sequence = sequence_of(
            self.number,
            prompt,
            max_tokens,
            is_serial=is_serial,
            arrived_s=self.now_s,
            deadline_s=self.now_s + timeout_s,
            priority=priority,
            fork_of=fork_of,
        )
        self.number += 1
        self.live[sequence.request.request_id] = sequence
        self.tokens[sequence.request.request_id] = []
        self.scheduler.add(sequence)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.take([self.scheduler.finish(self.live[name], "cancelled")])

    @precondition(lambda self: len(self.in_flight) < 2)
    @rule(num_drafts=st.integers(0, 4), wrong=st.integers(0, 4))
    def launch(self, num_drafts: int, wrong: int) -> None:
        for sequence in self.scheduler.drafting():
            if sequence.is_serial:
                first = sequence.total_len
                sequence.drafts = tuple(
                    synthetic_token(sequence.seed, first + place) ^ (place == wrong) for place in range(num_drafts)
                )
        plan = self.scheduler.plan(self.now_s)
        work = self.cache.take_work()
        assert plan.chunks or self.in_flight or not self.live
        if plan.chunks:
            self.model.launch(plan, work)
            self.scheduler.launched(plan)
            self.in_flight.append((plan, self.version))

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit(self) -> None:
        plan, version = self.in_flight.pop(0)
        sampled = self.model.result(plan).sampled
        self.take(self.scheduler.committed(plan, StepResult(sampled, weight_version=version)))

    @rule(seconds=st.sampled_from([0.01, 1.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.take(self.scheduler.time_out(self.now_s))

    @precondition(lambda self: not self.in_flight)
    @rule()
    def update_weights(self) -> None:
        self.scheduler.retract_all()
        self.version += 1
        self.scheduler.namespace = ("w", self.version)
        self.cache.flush()
        assert self.cache.stats().pages.free == self.cache.capacity.num_pages

    def take(self, events: list[Any]) -> None:
        for event in events:
            name = event.request_id
            sequence = self.live[name]  # nobody gets an event after his end
            if isinstance(event, TokenEvent):
                assert event.index == len(self.tokens[name])
                assert event.token_id == synthetic_token(sequence.seed, sequence.prompt_len + event.index)
                assert event.weight_version == self.version
                self.tokens[name].append(event.token_id)
            else:
                assert isinstance(event, FinalOutput)
                assert list(event.token_ids) == self.tokens[name]
                assert event.finish_reason != "length" or sequence.total_len == sequence.limit_len
                del self.live[name]

    @invariant()
    def laws_hold(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check()
        assert {s.request.request_id for s in self.scheduler.sequences()} == set(self.live)
        running = sum(s.phase is Phase.RUNNING for s in self.live.values())
        assert (running, len(self.live) - running) == (self.scheduler.num_running, self.scheduler.num_waiting)
        for sequence in self.live.values():
            sequence.check()

    def teardown(self) -> None:
        """Whatever state it was left in: everybody comes to an end, and all memory comes back."""
        if not hasattr(self, "cache"):
            return
        for _ in range(20_000):
            if not self.live and not self.in_flight:
                break
            self.launch(0, 0)
            if self.in_flight:
                self.commit()
        assert not self.live
        assert is_empty(self.cache)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=25,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.nightly
@pytest.mark.timeout(7200)
class TestSchedulerAtLength(SchedulerMachine.TestCase):
    """Ten thousand runs of up to 50 steps."""

    settings = settings(
        max_examples=10_000, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
    )
