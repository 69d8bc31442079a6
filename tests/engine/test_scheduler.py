"""The scheduler keeps its budgets, starves nobody and finishes everything, whatever arrives."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benthic.cache.block_manager import CacheManager
from benthic.cache.layout import WINDOW, CacheLayout
from benthic.engine.plan import StepPlan
from benthic.engine.request import Phase, Request, Sequence
from benthic.engine.sampling import SamplingParams
from benthic.engine.scheduler import Scheduler

MAX_LEN = 2048


def cache_of(csa_blocks: int, max_num_seqs: int, max_batched_tokens: int) -> CacheManager:
    blocks = {WINDOW: max_num_seqs * 4 + max_batched_tokens // 64 + 1, 4: csa_blocks, 128: max_num_seqs}
    return CacheManager(CacheLayout(layers=(), num_blocks=blocks, kept_len=128, max_model_len=MAX_LEN, num_bytes=0))


def sequence_of(number: int, prompt_len: int, max_tokens: int) -> Sequence:
    request = Request(request_id=str(number), prompt_ids=(7,) * prompt_len, params=SamplingParams(seed=0))
    return Sequence(request, number, prompt_len + max_tokens, frozenset())


def scheduler_of(
    csa_blocks: int = 64, max_num_seqs: int = 4, max_batched_tokens: int = 256, prefill_chunk: int = 64
) -> tuple[Scheduler, CacheManager]:
    cache = cache_of(csa_blocks, max_num_seqs, max_batched_tokens)
    scheduler = Scheduler(
        cache, max_num_seqs=max_num_seqs, max_batched_tokens=max_batched_tokens, prefill_chunk=prefill_chunk
    )
    return scheduler, cache


def run(scheduler: Scheduler, plan: StepPlan) -> None:
    """A pass without a model: every sampling chunk gets a token."""
    for chunk in plan.chunks:
        scheduler.commit(chunk)
        if chunk.samples:
            chunk.sequence.append(5, None)
            if chunk.sequence.natural_end() is not None:
                scheduler.remove(chunk.sequence)
                chunk.sequence.finish("length")


def test_a_lone_prompt_takes_the_whole_budget() -> None:
    scheduler, _ = scheduler_of()
    scheduler.add(sequence_of(0, 300, 5))
    plan = scheduler.plan()
    assert [(c.start, c.length, c.samples) for c in plan.chunks] == [(0, 256, False)]
    run(scheduler, plan)
    assert [(c.start, c.length, c.samples) for c in scheduler.plan().chunks] == [(256, 44, True)]


def test_decoding_rows_come_first_and_prompts_are_chunked_beside_them() -> None:
    scheduler, _ = scheduler_of()
    scheduler.add(sequence_of(0, 10, 50))
    run(scheduler, scheduler.plan())
    scheduler.add(sequence_of(1, 500, 5))
    for step in range(7):
        plan = scheduler.plan()
        assert [(c.sequence.number, c.length) for c in plan.chunks] == [(0, 1), (1, 64)], step
        run(scheduler, plan)
    assert [(c.sequence.number, c.length, c.samples) for c in scheduler.plan().chunks] == [(0, 1, True), (1, 52, True)]


def test_requests_are_admitted_in_order_of_arrival() -> None:
    scheduler, _ = scheduler_of(max_num_seqs=2)
    for number in range(5):
        scheduler.add(sequence_of(number, 20, 3))
    started = []
    while scheduler.num_running or scheduler.num_waiting:
        plan = scheduler.plan()
        started += [c.sequence.number for c in plan.chunks if c.start == 0]
        run(scheduler, plan)
    assert started == [0, 1, 2, 3, 4]


def test_the_youngest_gives_way_when_blocks_run_short_and_still_finishes() -> None:
    scheduler, cache = scheduler_of(csa_blocks=8, max_num_seqs=2)
    sequences = [sequence_of(0, 700, 900), sequence_of(1, 400, 600)]
    for sequence in sequences:
        scheduler.add(sequence)
    order = []
    for _ in range(5000):
        plan = scheduler.plan()
        run(scheduler, plan)
        order += [c.sequence.number for c in plan.chunks if c.sequence.phase is Phase.DONE]
        cache.check()
        if not (scheduler.num_running or scheduler.num_waiting):
            break
    assert scheduler.num_retractions > 0
    assert order == [0, 1]
    assert cache.num_used == 0


def test_removing_a_running_and_a_waiting_request_frees_everything() -> None:
    scheduler, cache = scheduler_of(max_num_seqs=1)
    first, second = sequence_of(0, 100, 10), sequence_of(1, 100, 10)
    scheduler.add(first)
    scheduler.add(second)
    run(scheduler, scheduler.plan())
    scheduler.remove(first)
    scheduler.remove(second)
    assert (scheduler.num_running, scheduler.num_waiting, cache.num_used) == (0, 0, 0)


def test_a_budget_that_leaves_no_row_for_prompts_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        scheduler_of(max_num_seqs=64, max_batched_tokens=64)


@settings(max_examples=40, deadline=None)
@given(
    arrivals=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 1000), st.integers(1, 1000)), max_size=8),
    csa_blocks=st.integers(8, 20),
    max_num_seqs=st.integers(1, 4),
    budget=st.integers(5, 300),
    prefill_chunk=st.integers(1, 300),
)
def test_every_request_finishes_within_budget_in_bounded_work(
    arrivals: list[tuple[int, int, int]], csa_blocks: int, max_num_seqs: int, budget: int, prefill_chunk: int
) -> None:
    scheduler, cache = scheduler_of(csa_blocks, max_num_seqs, budget, prefill_chunk)
    todo = sorted(
        ((step, sequence_of(i, n, min(m, MAX_LEN - n))) for i, (step, n, m) in enumerate(arrivals)), key=lambda x: x[0]
    )
    sequences = [sequence_of(i, s.prompt_len, s.limit_len - s.prompt_len) for i, (_, s) in enumerate(todo)]
    steps = [step for step, _ in todo]
    waited: dict[int, int] = {}
    step = 0
    while any(s.phase is not Phase.DONE for s in sequences):
        for sequence, arrival in zip(sequences, steps, strict=True):
            if arrival == step:
                scheduler.add(sequence)
        plan = scheduler.plan()
        scheduled = [c.sequence.number for c in plan.chunks]
        assert len(scheduled) == len(set(scheduled)), "a sequence appears twice in a pass"
        assert plan.num_rows <= budget
        assert len(scheduled) <= max_num_seqs
        live = [s.number for s in scheduler.sequences()]
        assert plan.chunks or not live, "work waits and nothing is planned"
        if live:
            oldest = min(live)
            waited[oldest] = 0 if oldest in scheduled else waited.get(oldest, 0) + 1
            assert waited[oldest] == 0, "the oldest request was passed over"
        decoding = [s.number for s in scheduler.sequences() if s.is_decoding]
        assert set(decoding) <= set(scheduled), "a decoding request was passed over"
        run(scheduler, plan)
        cache.check()
        step += 1
        assert step < 40_000, "no progress"
    assert cache.num_used == 0
