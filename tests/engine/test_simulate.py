"""What users would see: latencies, fairness and hits over synthetic traffic, on a simulated clock."""

import math
from collections.abc import Sequence as Seq
from dataclasses import replace

import pytest

from benthic.engine.plan import StepPlan
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.simulate import CostModel, Simulation, SimulationReport, synthetic_token
from benthic.engine.synthetic_trace import Arrival, TraceConfig, synthetic_trace
from benthic.errors import ConfigError
from tests.engine.scheduling import cache_of, is_empty, prompt_of, scheduler_of

COSTS = CostModel(fixed_s=5e-3, row_s=1e-4, page_s=1e-6)
AGING_S = 2.0


def play(
    trace: Seq[Arrival], *, pages: int = 50, rows: int = 8, overlap_steps: int = 0, draft_len: int = 0, hit: float = 0.7
) -> SimulationReport:
    cache = cache_of(pages, 40, rows, draft_len=draft_len)
    scheduler = scheduler_of(cache, max_batched_tokens=128, prefill_chunk=64, aging_s=AGING_S)

    def check(plan: StepPlan) -> None:
        cache.check()

    simulation = Simulation(
        scheduler,
        cache,
        max_len=400,
        costs=COSTS,
        overlap_steps=overlap_steps,
        draft_len=draft_len,
        hit_share=hit,
        check=check,
    )
    report = simulation.run(trace)
    assert is_empty(cache)
    return report


def tokens_of(report: SimulationReport) -> dict[str, list[int]]:
    return {name: line.tokens for name, line in report.timelines.items()}


BUSY = TraceConfig(
    num_requests=60, rate_per_s=40.0, burst=3, prompt_len=(4, 250), output_len=(1, 140), num_prefixes=2, prefix_len=40
)


def test_the_same_seed_makes_the_same_trace_and_another_seed_another() -> None:
    assert synthetic_trace(BUSY) == synthetic_trace(BUSY)
    assert synthetic_trace(BUSY) != synthetic_trace(replace(BUSY, seed=1))


def test_traces_have_the_shape_that_was_asked_for() -> None:
    config = replace(BUSY, num_requests=600, priorities=(0, 3), abort_share=0.5, fork_share=0.2, timeout_share=0.3)
    trace = synthetic_trace(config)
    assert [arrival.at_s for arrival in trace] == sorted(arrival.at_s for arrival in trace)
    assert 600 / trace[-1].at_s == pytest.approx(40, rel=0.3)
    assert {arrival.request.priority for arrival in trace} == {0, 3}
    assert sum(arrival.cancel_s is not None for arrival in trace) == pytest.approx(300, abs=60)
    assert sum(arrival.request.fork_of is not None for arrival in trace) == pytest.approx(120, abs=40)
    assert all(44 <= len(arrival.request.prompt_ids) <= 290 for arrival in trace)
    assert len({arrival.request.prompt_ids[:40] for arrival in trace}) == 2


@pytest.mark.parametrize("wrong", [{"prompt_len": (5, 4)}, {"output_len": (0, 4)}, {"abort_share": 1.5}])
def test_a_trace_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TraceConfig(**wrong)  # type: ignore[arg-type]


def test_a_lone_requests_times_are_those_of_its_passes() -> None:
    request = Request(request_id="r", prompt_ids=prompt_of(0, 100), params=SamplingParams(max_tokens=3, seed=5))
    report = play([Arrival(1.0, request)])
    line = report.timelines["r"]
    pages = COSTS.page_s * (100 // 16)
    assert line.first_token_s == pytest.approx(1.0 + 5e-3 + 100e-4 + pages)
    assert report.per_token_s.p50 == pytest.approx(5e-3 + 1e-4 + pages)
    assert report.num_steps == 3
    assert (report.hit_rate, report.num_retractions) == (0.0, 0)
    assert math.isnan(report.accepted)


def test_whatever_happens_to_a_request_its_tokens_are_its_own() -> None:
    """Invariant 17: memory pressure, hits, overlap and drafts leave every token as it is alone in a large cache."""
    trace = synthetic_trace(BUSY)
    roomy = play(trace, pages=2000)
    tight = play(trace)
    assert tight.num_retractions > 0 == roomy.num_retractions
    for report in (tight, play(trace, overlap_steps=1), play(trace, draft_len=3), play(trace, rows=1)):
        assert tokens_of(report) == tokens_of(roomy)
    first = trace[0].request
    expected = [synthetic_token(first.params.seed or 0, len(first.prompt_ids) + n) for n in range(500)]
    got = tokens_of(roomy)["r0"]
    assert got == expected[: len(got)] != []


def test_fifty_pages_are_enough_for_a_storm_of_arrivals_and_aborts() -> None:
    """Invariant 16: nothing deadlocks (a simulation in which nothing can happen any more raises)."""
    for seed in range(8):
        storm = replace(
            BUSY, rate_per_s=400.0, burst=10, abort_share=0.5, abort_within_s=2.0, timeout_share=0.2, fork_share=0.2,
            priorities=(0, 0, 4), seed=seed,
        )  # fmt: skip
        report = play(synthetic_trace(storm), overlap_steps=seed % 2, draft_len=seed % 3)
        assert all(line.final is not None for line in report.timelines.values())


def test_nobody_waits_longer_than_the_work_that_may_go_before() -> None:
    """Starvation: while short requests of a higher priority keep coming, a low one is served after its aging."""
    shorts = [
        Arrival(
            0.05 * n,
            Request(
                request_id=f"s{n}",
                prompt_ids=prompt_of(n + 1, 60),
                params=SamplingParams(max_tokens=20, seed=n),
                priority=2,
            ),
        )
        for n in range(150)
    ]
    low = Request(request_id="low", prompt_ids=prompt_of(0, 60), params=SamplingParams(max_tokens=20, seed=0))
    report = play(sorted([*shorts, Arrival(0.1, low)], key=lambda arrival: arrival.at_s), rows=1)
    line = report.timelines["low"]
    assert line.ended_s is not None
    assert 2 * AGING_S < line.ended_s < 2 * AGING_S * 2.5 + 2.0
    assert report.duration_s > 15.0


def test_a_high_priority_does_not_wait_for_low_ones_to_end() -> None:
    """Priority inversion: bounded by a step or two, not by the length of an answer."""
    lows = [
        Arrival(
            0.0,
            Request(request_id=f"l{n}", prompt_ids=prompt_of(n, 40), params=SamplingParams(max_tokens=300, seed=n)),
        )
        for n in range(12)
    ]
    high = Request(
        request_id="high", prompt_ids=prompt_of(50, 40), params=SamplingParams(max_tokens=5, seed=1), priority=1
    )
    report = play([*lows, Arrival(1.0, high)], pages=100, rows=4)
    first_token_s = report.timelines["high"].first_token_s
    assert first_token_s is not None
    assert first_token_s - 1.0 < 0.05
    assert report.duration_s > 4.0


def test_short_prompts_are_answered_while_long_ones_are_read() -> None:
    def arrival(name: str, at_s: float, number: int, length: int) -> Arrival:
        params = SamplingParams(max_tokens=2, seed=number)
        return Arrival(at_s, Request(request_id=name, prompt_ids=prompt_of(number, length), params=params))

    long = [arrival(f"long{n}", 0.0, n, 390) for n in range(6)]
    short = [arrival(f"short{n}", 0.02 + 0.01 * n, 10 + n, 20) for n in range(4)]
    report = play([*long, *short], pages=400, rows=16)
    waits = [line.first_token_s - line.arrived_s for name, line in report.timelines.items() if "short" in name]
    assert max(waits) < 0.06
    assert report.duration_s > 0.3


def test_shared_prefixes_are_found() -> None:
    config = replace(BUSY, num_prefixes=1, prefix_len=100, prompt_len=(4, 40), rate_per_s=5.0, burst=1)
    report = play(synthetic_trace(config), pages=200)
    assert report.hit_rate > 0.6
    assert play(synthetic_trace(replace(config, num_prefixes=0, prompt_len=(100, 140))), pages=200).hit_rate == 0.0


def test_good_guesses_save_passes_and_bad_ones_cost_no_token() -> None:
    trace = synthetic_trace(replace(BUSY, num_requests=12))
    plain = play(trace, pages=400)
    good = play(trace, pages=400, draft_len=3, hit=0.9)
    bad = play(trace, pages=400, draft_len=3, hit=0.0)
    assert good.accepted > 0.6
    assert bad.accepted == 0.0
    assert good.per_token_s.p50 < 0.6 * plain.per_token_s.p50
    assert tokens_of(good) == tokens_of(bad) == tokens_of(plain)


def test_forks_compute_their_prompt_once() -> None:
    leader = Request(request_id="a", prompt_ids=prompt_of(0, 200), params=SamplingParams(max_tokens=2, seed=0))
    others = [
        replace(leader, request_id=f"b{n}", fork_of="a", params=SamplingParams(max_tokens=2, seed=n)) for n in range(7)
    ]
    report = play([Arrival(0.0, request) for request in (leader, *others)], pages=200)
    assert report.num_rows == 199 + 8 * 2
