"""Too little memory: who gives way and who moves on.

Tests named b68 to b84 are of failures that other engines had; each says the right behaviour, with its source here:
b68 vllm-ascend#15204, b69 vllm#49674, b71 mistral.rs#2043, b72 HabanaAI/vllm-fork#2247, b74 sglang#30532,
b75 sglang#29662, b77 sglang#22273, b80 pegainfer#215, b81 sglang#36475, b82 vllm-ascend#13478, b84 sglang#27789.
"""

import itertools
from collections import Counter

import pytest

from benthic.engine.request import FinalOutput
from benthic.engine.sequence import Sequence
from benthic.engine.simulate import synthetic_token
from tests.engine.scheduling import (
    MAX_LEN,
    PAGE,
    Driver,
    cache_of,
    driver_of,
    is_empty,
    numbers,
    prompt_of,
    sequence_of,
)


def finals_of(driver: Driver) -> dict[str, FinalOutput]:
    return {event.request_id: event for event in driver.events if isinstance(event, FinalOutput)}


def longest_wait(driver: Driver, watched: list[Sequence], most_steps: int = 5000) -> int:
    """Steps that one of them went without a token, at most, from its first on."""
    waited = Counter[int]()
    worst = 0
    for _ in range(most_steps):
        before = {s.number: s.num_generated for s in watched}
        driver.step()
        for s in watched:
            began = s.num_generated > 0 and s.finish_reason is None
            waited[s.number] = waited[s.number] + 1 if began and s.num_generated == before[s.number] else 0
            worst = max(worst, waited[s.number])
        if not (driver.scheduler.num_running or driver.scheduler.num_waiting):
            return worst
    raise AssertionError("no end")


@pytest.mark.parametrize("depth", [0, 1])
def test_the_last_in_rank_gives_way_and_still_finishes(depth: int) -> None:
    sequences = [sequence_of(0, 100, 250), sequence_of(1, 100, 250), sequence_of(2, 100, 250)]
    driver = driver_of(*sequences, depth=depth, cache=cache_of(pages=30), admission_headroom=0)
    driver.run()
    assert sequences[0].num_retractions == 0
    assert driver.scheduler.num_retractions > 0
    for sequence in sequences:
        assert sequence.tokens[100:] == [synthetic_token(sequence.seed, place) for place in range(100, 350)]
    assert is_empty(driver.cache)


def test_a_retracted_request_resumes_from_what_it_left_in_the_cache() -> None:
    first, second = sequence_of(0, 100, 60), sequence_of(1, 100, 100)
    driver = driver_of(first, second, cache=cache_of(pages=18), admission_headroom=0)
    resumed: list[int] = []
    retracted_at = 0
    for _ in range(1000):
        before = second.num_retractions
        computed_len = second.computed_len
        plan = driver.step()
        if second.num_retractions > before:
            retracted_at = computed_len
        if second.num_retractions and not resumed and 1 in numbers(plan):
            resumed = [chunk.start for chunk in plan.chunks if chunk.sequence is second]
    assert second.finish_reason == "length"
    assert resumed and resumed[0] >= retracted_at - 3 * PAGE


def test_higher_priorities_are_retracted_last() -> None:
    sequences = [sequence_of(n, 60, 200, priority=p, arrived_s=n / 1000) for n, p in enumerate([0, 2, 1])]
    driver = driver_of(*sequences, cache=cache_of(pages=26), admission_headroom=0)
    driver.run()
    assert sequences[1].num_retractions == 0
    assert sequences[0].num_retractions >= sequences[2].num_retractions
    assert sequences[0].num_retractions > 0


@pytest.mark.parametrize("depth", [0, 1])
def test_b68_a_chunk_larger_than_the_windows_shrinks_instead_of_waiting(depth: int) -> None:
    cache = cache_of(pages=200, windows=4, rows=2, max_len=3000)
    sequence = sequence_of(0, 2000, 5)
    driver = driver_of(sequence, depth=depth, cache=cache, max_batched_tokens=10_000, prefill_chunk=10_000)
    driver.run(most_steps=200)
    assert sequence.finish_reason == "length"


def test_a_long_prompt_leaves_decodes_their_windows() -> None:
    # They come to a new page while the prompt's first chunk, which could use every window, is in flight.
    decoders = [sequence_of(number, 14, 60) for number in range(3)]
    driver = driver_of(*decoders, depth=1, cache=cache_of(windows=16), max_batched_tokens=400, prefill_chunk=400)
    driver.step()
    driver.step()
    driver.scheduler.add(sequence_of(3, 380, 5))
    for _ in range(10):
        assert numbers(driver.step())[:3] == [0, 1, 2]
    assert driver.scheduler.num_retractions == 0


def test_nobody_starts_in_a_plan_that_took_memory_from_somebody() -> None:
    sequences = [sequence_of(n, length, 14) for n, length in enumerate((30, 30, 50, 50))]
    cache = cache_of(pages=12, rows=5, max_len=192)
    driver = driver_of(*sequences, cache=cache, admission_headroom=0, max_batched_tokens=256, prefill_chunk=256)
    driver.step()
    driver.scheduler.add(sequence_of(4, 4, 2))
    while driver.scheduler.num_retractions == 0:
        plan = driver.step()
    assert 4 not in numbers(plan)
    assert 4 in numbers(driver.step())


def test_b69_one_retraction_in_flight_is_waited_for_before_the_next() -> None:
    cache = cache_of(pages=25, rows=6)
    sequences = [sequence_of(number, 30, 200) for number in range(6)]
    driver = driver_of(*sequences, depth=1, cache=cache, admission_headroom=0)
    gaps = Counter[int]()
    before = 0
    while sequences[0].finish_reason is None:
        generated = sequences[0].num_generated
        driver.step()
        assert driver.scheduler.num_retractions - before <= 1
        before = driver.scheduler.num_retractions
        gaps[0] = gaps[0] + 1 if generated == sequences[0].num_generated else 0
        assert gaps[0] <= 4, "the first in rank stands still"
    driver.run()
    assert before > 0


def test_b69_while_memory_is_on_its_way_back_nobody_else_is_left_out() -> None:
    # The first two need a page in the same step, when none is left; what the last holds is enough for both.
    first, second, third, last = (sequence_of(n, length, 14) for n, length in enumerate((30, 30, 50, 50)))
    cache = cache_of(pages=12, rows=4, max_len=192)
    driver = driver_of(
        first, second, third, last, depth=1, cache=cache,
        admission_headroom=0, max_batched_tokens=256, prefill_chunk=256,
    )  # fmt: skip
    for _ in range(13):
        assert 2 in numbers(driver.step())
    assert (last.num_retractions, driver.scheduler.num_retractions) == (1, 1)
    driver.run()
    assert driver.scheduler.num_retractions == 1


@pytest.mark.parametrize("headroom", [0, 16])
def test_b71_no_plan_retracts_or_holds_a_request_twice(headroom: int) -> None:
    sequences = [sequence_of(number, 30, 250) for number in range(8)]
    driver = driver_of(*sequences, cache=cache_of(pages=26), admission_headroom=headroom)
    for _ in range(10_000):
        if not (driver.scheduler.num_running or driver.scheduler.num_waiting):
            break
        before = {s.number: s.num_retractions for s in driver.scheduler.sequences()}
        plan = driver.launch()
        assert len(set(numbers(plan))) == len(plan.chunks)
        for sequence in driver.scheduler.sequences():
            assert sequence.num_retractions - before[sequence.number] <= 1
            assert sequence.num_retractions == before[sequence.number] or sequence.number not in numbers(plan)
        driver.commit()
    assert len(finals_of(driver)) == 8


@pytest.mark.parametrize("depth", [0, 1])
def test_b72_decodes_go_on_after_a_retraction(depth: int) -> None:
    # The long prompt is admitted last and must give way.
    decoders = [sequence_of(number, 20, 120) for number in range(4)]
    driver = driver_of(*decoders, depth=depth, cache=cache_of(pages=38), admission_headroom=0, prefill_chunk=5)
    for _ in range(20):
        driver.step()
    long = sequence_of(4, 380, 10)
    driver.scheduler.add(long)
    assert longest_wait(driver, decoders) <= 3
    assert long.num_retractions > 0
    assert long.finish_reason == "length"


@pytest.mark.parametrize("depth", [0, 1])
def test_b74_drafts_in_a_tiny_cache_wait_for_nobody_in_a_circle(depth: int) -> None:
    cache = cache_of(pages=26, windows=12, rows=6, draft_len=4)
    sequences = [sequence_of(n, 10 + n, 20 + 7 * (n % 30), is_serial=True) for n in range(50)]
    driver = driver_of(*sequences, depth=depth, cache=cache, admission_headroom=0)
    for _ in range(20_000):
        for sequence in driver.scheduler.drafting():
            right = range(sequence.total_len, sequence.total_len + 4)
            sequence.drafts = tuple(synthetic_token(sequence.seed, p) ^ (p % 5 == 0) for p in right)
        driver.step()
        if not (driver.scheduler.num_running or driver.scheduler.num_waiting or driver.in_flight):
            break
    assert all(sequence.finish_reason == "length" for sequence in sequences)
    assert is_empty(cache)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("pages", "windows", "rows"), [(25, 100, 8), (200, 2, 8), (200, 3, 2), (26, 3, 1), (60, 6, 4)])
def test_b75_whatever_is_short_finished_prefixes_make_room(pages: int, windows: int, rows: int, depth: int) -> None:
    cache = cache_of(pages=pages, windows=windows, rows=rows, policy="every_page")
    driver = driver_of(*(sequence_of(number, 150, 20) for number in range(12)), depth=depth, cache=cache)
    driver.run()
    last = sequence_of(99, MAX_LEN - 5, 5)
    driver.scheduler.add(last)
    driver.run()
    assert last.finish_reason == "length"
    assert is_empty(cache)


def test_b77_a_request_that_never_ran_leaves_what_others_cached_as_it_was() -> None:
    driver = driver_of(sequence_of(0, 100, 5))
    driver.run()
    before = driver.cache.match(prompt_of(0, 100), ("",))
    refused = sequence_of(1, (*prompt_of(0, 100), 5), 5)
    driver.scheduler.add(refused)
    driver.scheduler.finish(refused, "error", "refused")
    assert driver.cache.match(prompt_of(0, 100), ("",)) == before
    assert is_empty(driver.cache)


@pytest.mark.parametrize("depth", [0, 1])
def test_b80_after_many_aborts_a_new_request_starts_at_once(depth: int) -> None:
    driver = driver_of(*(sequence_of(number, 40, 300) for number in range(50)), depth=depth)
    for _ in range(30):
        driver.step()
    for sequence in list(driver.scheduler.sequences()):
        driver.scheduler.finish(sequence, "cancelled")
    new = sequence_of(99, 40, 300)
    driver.scheduler.add(new)
    plans = [driver.step() for _ in range(3)]
    assert any(numbers(plan) == [99] for plan in plans)
    driver.scheduler.finish(new, "cancelled")
    driver.run()
    assert is_empty(driver.cache)


def test_b81_the_turn_after_an_aborted_one_finds_what_was_committed_and_nothing_of_the_lost_rest() -> None:
    driver = driver_of(depth=1)
    history = prompt_of(0, 100)
    for number in range(20):
        lost = sequence_of(2 * number, history, 200, params={"temperature": 0.0})
        driver.scheduler.add(lost)
        for _ in range(6):
            driver.step()
        driver.scheduler.finish(lost, "cancelled")
        turn = sequence_of(2 * number + 1, (*history, 1, 2, 3), 4)
        driver.scheduler.add(turn)
        driver.run()
        assert turn.tokens[: turn.prompt_len] == [*history, 1, 2, 3]
        assert finals_of(driver)[f"r{turn.number}"].prompt_len == len(history) + 3
        history = tuple(turn.tokens)
        assert is_empty(driver.cache)


@pytest.mark.parametrize("shared", [0, 1, PAGE, 95, 96, 97, 100])
def test_b82_a_hit_of_any_length_runs(shared: int) -> None:
    driver = driver_of(sequence_of(0, 100, 2))
    driver.run()
    prompt = (*prompt_of(0, shared), *prompt_of(7, 97 - min(shared, 97)))
    sequence = sequence_of(1, prompt, 2)
    driver.scheduler.add(sequence)
    driver.run(most_steps=10)
    assert sequence.finish_reason == "length"


@pytest.mark.parametrize(
    ("page", "draft_len", "depth"), list(itertools.product((16, 32, 64), range(5), (0, 1))), ids=str
)
def test_b84_pages_are_conserved_at_every_page_size_and_draft_length(page: int, draft_len: int, depth: int) -> None:
    cache = cache_of(pages=1000 // page, windows=500 // page, rows=4, page=page, draft_len=draft_len)
    sequences = [sequence_of(n, 30 + 11 * n, 60, is_serial=draft_len > 0) for n in range(10)]
    driver = driver_of(*sequences, depth=depth, cache=cache, admission_headroom=0)
    while driver.scheduler.num_running or driver.scheduler.num_waiting or driver.in_flight:
        for sequence in driver.scheduler.drafting() if draft_len else ():
            sequence.drafts = tuple(synthetic_token(sequence.seed, sequence.total_len + p) for p in range(draft_len))
        driver.step()  # checks the cache's laws
    assert all(sequence.finish_reason == "length" for sequence in sequences)
    assert is_empty(cache)
