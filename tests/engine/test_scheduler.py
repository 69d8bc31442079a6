"""What a plan holds: order, budgets, fairness, admission."""

import math

import pytest

from benthic.engine.plan import SampledToken, StepResult
from benthic.engine.request import FinalOutput, TokenEvent
from benthic.engine.simulate import synthetic_token
from tests.engine.scheduling import (
    cache_of,
    driver_of,
    gives,
    is_empty,
    numbers,
    prompt_of,
    scheduler_of,
    sequence_of,
    shape,
)


def test_a_lone_prompt_takes_the_whole_budget() -> None:
    driver = driver_of(sequence_of(0, 100))
    assert shape(driver.step()) == [(0, 0, 64, False)]
    assert shape(driver.step()) == [(0, 64, 36, True)]
    assert shape(driver.step()) == [(0, 100, 1, True)]


def test_decoding_rows_come_first_and_prompts_are_chunked_beside_them() -> None:
    driver = driver_of(sequence_of(0, 10, 50))
    driver.step()
    driver.scheduler.add(sequence_of(1, 100))
    for start in (0, 32, 64):
        assert shape(driver.step()) == [(0, 10 + start // 32, 1, True), (1, start, 32, False)]
    assert shape(driver.step()) == [(0, 13, 1, True), (1, 96, 4, True)]


def test_requests_of_one_length_start_in_order_of_arrival() -> None:
    driver = driver_of(*(sequence_of(number, 20, 3) for number in range(6)), cache=cache_of(rows=2))
    started = [chunk.sequence.number for plan in driver.run() for chunk in plan.chunks if chunk.start == 0]
    assert started == [0, 1, 2, 3, 4, 5]
    assert is_empty(driver.cache)


def test_the_first_prompt_gets_half_and_the_shortest_other_the_rest() -> None:
    driver = driver_of(sequence_of(0, 300), sequence_of(1, 300), sequence_of(2, 40))
    assert shape(driver.step()) == [(0, 0, 32, False), (2, 0, 32, False)]
    assert shape(driver.step()) == [(0, 32, 32, False), (2, 32, 8, True), (1, 0, 24, False)]


def test_what_the_others_do_not_need_goes_back_to_the_first_prompt() -> None:
    driver = driver_of(sequence_of(0, 300), sequence_of(1, 5))
    assert shape(driver.step()) == [(0, 0, 59, False), (1, 0, 5, True)]


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    cache = cache_of(pages=10_000, windows=400, max_len=100_000)
    driver = driver_of(sequence_of(0, 90_000), sequence_of(1, 80_000), cache=cache)
    for _ in range(3):
        driver.step()
    short = sequence_of(2, 60, 1)
    driver.scheduler.add(short)
    driver.step()
    driver.step()
    assert short.finish_reason == "length"


def test_the_long_prompt_moves_on_in_every_step_while_short_ones_arrive() -> None:
    cache = cache_of(pages=1000, windows=400, max_len=10_000)
    driver = driver_of(sequence_of(0, 2000), cache=cache)
    long = next(iter(driver.scheduler.sequences()))
    for number in range(1, 30):
        driver.scheduler.add(sequence_of(number, 60, 1))
        before = long.computed_len
        driver.step()
        assert long.computed_len - before >= 16


def test_a_higher_priority_goes_first() -> None:
    driver = driver_of(
        sequence_of(0, 100, priority=0), sequence_of(1, 100, priority=1), cache=cache_of(rows=1), aging_s=10.0
    )
    assert numbers(driver.step()) == [1]


def test_waiting_makes_up_for_priority() -> None:
    patient = sequence_of(0, 100, priority=0, arrived_s=0.0)
    hasty = sequence_of(1, 100, priority=2, arrived_s=21.0)
    driver = driver_of(hasty, patient, cache=cache_of(rows=1), aging_s=10.0)
    assert numbers(driver.step()) == [0]


def test_a_running_request_gives_its_row_to_a_waiting_one_of_higher_priority_and_comes_back() -> None:
    driver = driver_of(sequence_of(0, 40, 100, arrived_s=5.0), cache=cache_of(rows=1))
    for _ in range(10):
        driver.step()
    low = next(iter(driver.scheduler.sequences()))
    high = sequence_of(1, 40, 3, priority=1, arrived_s=6.0)
    driver.scheduler.add(high)
    for _ in range(6):
        driver.step()
    assert high.finish_reason == "length"
    driver.run()
    assert low.num_retractions == 1
    assert low.tokens[40:] == [synthetic_token(0, place) for place in range(40, 140)]


def test_a_running_request_is_not_retracted_for_a_waiting_one_of_its_own_priority() -> None:
    driver = driver_of(sequence_of(0, 40, 50, arrived_s=5.0), cache=cache_of(rows=1))
    driver.step()
    driver.scheduler.add(sequence_of(1, 40, 3, arrived_s=1.0))
    driver.run()
    assert driver.scheduler.num_retractions == 0


def test_nobody_is_retracted_for_one_that_would_not_fit_even_so() -> None:
    cache = cache_of(pages=25)
    running = [sequence_of(0, 200, 100, priority=3, arrived_s=0.0), sequence_of(1, 16, 100, arrived_s=0.0)]
    driver = driver_of(*running, cache=cache)
    for _ in range(8):
        driver.step()
    driver.scheduler.add(sequence_of(2, 350, 5, priority=1, arrived_s=0.0))
    for _ in range(20):
        driver.step()
    assert driver.scheduler.num_retractions == 0


def test_smaller_requests_overtake_one_that_does_not_fit_but_only_so_many() -> None:
    cache = cache_of(pages=25, rows=4)
    driver = driver_of(sequence_of(0, 150, 240), sequence_of(1, 380, 5), cache=cache)
    big = sequence_of(1, 380, 5)
    overtakers = [sequence_of(number, 4, 2) for number in range(2, 30)]
    for sequence in overtakers:
        driver.scheduler.add(sequence)
    started = list(dict.fromkeys(number for plan in driver.run() for number in numbers(plan)))
    assert started[:5] == [0, 2, 3, 4, 5]
    assert started[5] == big.number


def test_a_budget_that_leaves_no_row_for_prompts_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        scheduler_of(cache_of(), max_batched_tokens=8)


def test_nothing_live_makes_an_empty_plan() -> None:
    assert driver_of().launch().chunks == ()


def test_a_request_for_no_tokens_ends_with_its_prompt() -> None:
    sequence = sequence_of(0, 40, 0, params={"prompt_logprobs": 0})
    driver = driver_of(sequence)
    assert shape(driver.step()) == [(0, 0, 40, False)]
    assert [type(event) for event in driver.events] == [FinalOutput]
    assert sequence.finish_reason == "length"


def test_a_second_request_continues_from_the_first_ones_prompt() -> None:
    driver = driver_of(sequence_of(0, 100, 2))
    driver.run()
    second = sequence_of(1, (*prompt_of(0, 100), 7, 8), 2)
    driver.scheduler.add(second)
    assert shape(driver.step())[0][:3] == (1, 96, 6)
    driver.run()
    final = driver.events[-1]
    assert isinstance(final, FinalOutput) and final.report is not None
    assert (final.cached_len, final.report.usable_match, final.report.cut) == (96, 96, "whole prompt")


def test_equal_prompts_that_come_together_are_computed_once() -> None:
    driver = driver_of(*(sequence_of(number, (*prompt_of(0, 96), number), 2) for number in range(6)))
    rows = sum(plan.num_rows for plan in driver.run())
    assert rows == 97 + 5 * 1 + 6


def test_prompts_that_part_go_on_side_by_side_from_there() -> None:
    shared = prompt_of(0, 64)
    first, second = ((*shared, *prompt_of(number, 100)) for number in (1, 2))
    driver = driver_of(sequence_of(0, first), sequence_of(1, second))
    assert shape(driver.step()) == [(0, 0, 64, False)]
    assert shape(driver.step()) == [(0, 64, 32, False), (1, 64, 32, False)]


@pytest.mark.parametrize("field", [{"cache_salt": "x"}, {"use_cache": False}])
def test_nobody_waits_for_pages_that_he_may_not_take(field: dict[str, object]) -> None:
    driver = driver_of(sequence_of(0, 100), sequence_of(1, prompt_of(0, 100), **field))
    assert numbers(driver.step()) == [0, 1]


@pytest.mark.parametrize("settings", [{"use_cache": False}, {"namespace": ("other weights", 1)}])
def test_prefixes_are_not_shared_where_they_must_not_be(settings: dict[str, object]) -> None:
    cache = cache_of()
    driver_of(sequence_of(0, 100, 2), cache=cache).run()
    again = driver_of(sequence_of(1, prompt_of(0, 100), 2), cache=cache, **settings)
    assert again.step().chunks[0].start == 0


@pytest.mark.parametrize("request_fields", [{"use_cache": False}, {"cache_salt": "mine"}])
def test_a_request_may_keep_to_itself(request_fields: dict[str, object]) -> None:
    driver = driver_of(sequence_of(0, 100, 2))
    driver.run()
    driver.scheduler.add(sequence_of(1, prompt_of(0, 100), 2, **request_fields))
    assert driver.step().chunks[0].start == 0


def test_tokens_of_one_weight_version_only() -> None:
    sequence = sequence_of(0, 40, 6)
    driver = driver_of(sequence)
    driver.scheduler.namespace = ("w", 1)
    for _ in range(3):
        plan = driver.launch()
        driver.commit(gives(plan, {}, weight_version=1))
    driver.scheduler.retract_all()
    driver.scheduler.namespace = ("w", 2)
    assert driver.scheduler.num_running == 0
    plan = driver.launch()
    assert shape(plan) == [(0, 0, 43, True)]
    driver.commit(gives(plan, {}, weight_version=2))
    while driver.scheduler.num_running:
        plan = driver.launch()
        driver.commit(gives(plan, {}, weight_version=2))
    events = [event for event in driver.events if isinstance(event, TokenEvent)]
    assert [event.weight_version for event in events] == [1, 1, 1, 2, 2, 2]
    final = driver.events[-1]
    assert isinstance(final, FinalOutput) and final.report is not None
    assert final.report.weight_versions == (1, 2)


def test_logits_that_are_not_finite_end_their_request_and_share_nothing() -> None:
    bad, good = sequence_of(0, 48, 5), sequence_of(1, 10, 5)
    driver = driver_of(bad, good)
    plan = driver.launch()
    assert numbers(plan) == [0, 1]
    driver.commit(StepResult(((SampledToken(0, None, "not finite"),), (SampledToken(3),))))
    assert (bad.finish_reason, good.finish_reason) == ("error", None)
    assert driver.cache.match([*prompt_of(0, 48), 1], ("",)).compressed_len == 0
    driver.run()
    assert good.finish_reason == "length"
    assert is_empty(driver.cache)


@pytest.mark.parametrize(("is_cancelled", "num_checkpoints"), [(False, 2), (True, 1)])
def test_the_end_of_a_finished_answer_is_kept_for_the_next_turn(is_cancelled: bool, num_checkpoints: int) -> None:
    sequence = sequence_of(0, 20, 30)
    driver = driver_of(sequence)
    for _ in range(29):
        driver.step()
    if is_cancelled:
        driver.scheduler.finish(sequence, "cancelled")
    driver.run()
    assert driver.cache.stats().num_checkpoints == num_checkpoints


def test_the_stop_token_ends_a_request() -> None:
    stop = synthetic_token(0, 12)
    sequence = sequence_of(0, 10, 50, stop_ids=(stop,))
    driver_of(sequence).run()
    assert sequence.finish_reason == "stop"
    assert sequence.tokens[-1] == stop


@pytest.mark.parametrize("depth", [0, 1])
def test_a_late_request_ends_with_an_error_wherever_it_is(depth: int) -> None:
    running = sequence_of(0, 10, 300, deadline_s=5.0)
    waiting = sequence_of(1, 10, 300, deadline_s=3.0)
    alive = sequence_of(2, 10, 300)
    driver = driver_of(running, waiting, alive, depth=depth, cache=cache_of(rows=1))
    for _ in range(5):
        driver.step()
    assert driver.scheduler.time_out(2.9) == []
    assert [final.request_id for final in driver.scheduler.time_out(3.0)] == ["r1"]
    finals = driver.scheduler.time_out(math.inf)
    assert [final.request_id for final in finals] == ["r0"]
    assert finals[0].finish_reason == "error" and "timed out" in str(finals[0].error)
    assert finals[0].token_ids
    driver.run()
    assert alive.finish_reason == "length"
    assert driver.scheduler.num_timeouts == 2
    assert is_empty(driver.cache)


def test_prompt_logprobs_are_whole_after_a_retraction() -> None:
    driver = driver_of(sequence_of(0, 100, 5, params={"prompt_logprobs": 0}))
    sequence = next(iter(driver.scheduler.sequences()))
    while driver.scheduler.num_running or driver.scheduler.num_waiting:
        plan = driver.launch()
        scored = tuple(tuple(range(c.start + 1, min(c.start + c.length + 1, sequence.prompt_len))) for c in plan.chunks)
        driver.commit(gives(plan, {}, prompt_logprobs=scored))
        if sequence.computed_len == 64 and not sequence.num_retractions:
            driver.scheduler.retract_all()
    assert sequence.prompt_logprobs == list(range(1, 100))


def test_prompt_logprobs_are_not_lost_to_the_cache() -> None:
    driver = driver_of(sequence_of(0, 100, 2))
    driver.run()
    driver.scheduler.add(sequence_of(1, prompt_of(0, 100), 2, params={"prompt_logprobs": 0}))
    assert driver.step().chunks[0].start == 0


def test_the_report_counts_queueing_from_arrival() -> None:
    driver = driver_of(
        sequence_of(0, 10, 3, arrived_s=1.0), sequence_of(1, 10, 3, arrived_s=2.0), cache=cache_of(rows=1)
    )
    while driver.scheduler.num_running or driver.scheduler.num_waiting:
        driver.now_s += 2.0
        driver.step()
    reports = [event.report for event in driver.events if isinstance(event, FinalOutput)]
    assert [report.queued_s for report in reports if report is not None] == [1.0, 6.0]
