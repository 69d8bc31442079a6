"""Passes in flight, requests that end meanwhile, drafts and forks."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benthic.engine.request import FinalOutput, RowExtras, TokenEvent
from benthic.engine.sequence import Phase
from benthic.engine.simulate import synthetic_token
from tests.engine.scheduling import cache_of, driver_of, gives, is_empty, numbers, prompt_of, sequence_of, shape


def test_a_decoding_request_is_planned_again_before_its_token_is_here() -> None:
    driver = driver_of(sequence_of(0, 10, 5), depth=1)
    first, second, third = driver.launch(), driver.launch(), driver.launch()
    assert [chunk.is_relayed for plan in (first, second, third) for chunk in plan.chunks] == [False, True, True]
    assert [shape(plan) for plan in (first, second, third)] == [
        [(0, 0, 10, True)],
        [(0, 10, 1, True)],
        [(0, 11, 1, True)],
    ]


def test_no_row_is_planned_for_a_token_behind_the_last() -> None:
    sequence = sequence_of(0, 10, 2)
    driver = driver_of(sequence, depth=1)
    plans = driver.run()
    assert [chunk.start for plan in plans for chunk in plan.chunks] == [0, 10]
    assert sequence.finish_reason == "length"


def test_a_serial_request_waits_for_its_result() -> None:
    driver = driver_of(sequence_of(0, 10, 5, is_serial=True), depth=1)
    assert numbers(driver.launch()) == [0]
    assert driver.launch().chunks == ()
    driver.commit()
    assert shape(driver.launch()) == [(0, 10, 1, True)]


def test_a_serial_requests_prompt_does_not_wait_between_its_chunks() -> None:
    driver = driver_of(sequence_of(0, 100, 5, is_serial=True), depth=1)
    assert shape(driver.launch()) + shape(driver.launch()) == [(0, 0, 64, False), (0, 64, 36, True)]
    assert driver.launch().chunks == ()


def test_the_row_in_flight_behind_the_end_of_a_request_changes_nothing() -> None:
    stop = synthetic_token(0, 12)
    ends, goes_on = sequence_of(0, 10, 50, stop_ids=(stop,)), sequence_of(1, 10, 8)
    driver = driver_of(ends, goes_on, depth=1)
    driver.run()
    finals = [event for event in driver.events if isinstance(event, FinalOutput)]
    assert [(final.request_id, final.finish_reason) for final in finals] == [("r0", "stop"), ("r1", "length")]
    assert finals[0].token_ids == tuple(synthetic_token(0, place) for place in (10, 11, 12))
    assert finals[1].token_ids == tuple(synthetic_token(1, place) for place in range(10, 18))
    assert is_empty(driver.cache)


def test_memory_of_an_ended_request_is_not_handed_out_while_a_pass_may_write_to_it() -> None:
    cache = cache_of(rows=1)
    driver = driver_of(sequence_of(0, 10, 50), sequence_of(1, 10, 5), depth=1, cache=cache)
    driver.launch()
    driver.launch()
    driver.scheduler.finish(driver.in_flight[0].chunks[0].sequence, "cancelled")
    assert driver.launch().chunks == ()
    driver.commit()
    assert driver.launch().chunks == ()
    driver.commit()
    assert numbers(driver.launch()) == [1]


MOMENTS = ["waiting", "prompt in flight", "prompt half done", "decode in flight", "two passes in flight", "retracted"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_request_can_be_aborted_at_any_moment(moment: str) -> None:
    victim, other = sequence_of(0, 100, 50), sequence_of(1, 20, 10)
    driver = driver_of(victim, depth=1)
    if moment != "waiting":
        driver.launch()
    if moment in ("prompt half done", "decode in flight", "two passes in flight", "retracted"):
        driver.commit()
    if moment in ("decode in flight", "two passes in flight"):
        driver.step()
        driver.step()
    if moment == "two passes in flight":
        driver.launch()
    if moment == "retracted":
        driver.scheduler.retract_all()
    before = len(driver.events)
    driver.scheduler.add(other)
    final = driver.scheduler.finish(victim, "cancelled")
    assert final.finish_reason == "cancelled"
    assert victim.phase is Phase.DONE
    driver.run()
    assert {event.request_id for event in driver.events[before:]} == {"r1"}
    assert other.finish_reason == "length"
    assert is_empty(driver.cache)


def test_drafts_that_are_right_are_kept_and_the_first_wrong_one_is_replaced() -> None:
    sequence = sequence_of(0, 10, 20, is_serial=True)
    driver = driver_of(sequence, cache=cache_of(draft_len=3))
    driver.step()
    assert driver.scheduler.drafting() == [sequence]
    sequence.drafts = (synthetic_token(0, 11), synthetic_token(0, 12), 5)
    plan = driver.launch()
    assert shape(plan) == [(0, 10, 4, True)]
    assert plan.chunks[0].token_ids() == [synthetic_token(0, 10), *plan.chunks[0].drafts]
    driver.commit()
    assert sequence.tokens[10:] == [synthetic_token(0, place) for place in range(10, 14)]
    assert (sequence.computed_len, sequence.pending_len, sequence.drafts) == (13, 1, ())
    assert (sequence.drafted, sequence.accepted) == (3, 2)
    driver.run()
    assert sequence.tokens[10:] == [synthetic_token(0, place) for place in range(10, 30)]


def test_drafts_never_reach_past_the_last_token() -> None:
    sequence = sequence_of(0, 10, 3, is_serial=True)
    driver = driver_of(sequence, cache=cache_of(draft_len=3))
    driver.step()
    sequence.drafts = tuple(synthetic_token(0, place) for place in range(11, 14))
    assert shape(driver.step()) == [(0, 10, 2, True)]
    assert sequence.finish_reason == "length"
    assert len(sequence.tokens) == 13


def test_a_stop_token_among_right_drafts_ends_the_request_there() -> None:
    stop = synthetic_token(0, 12)
    sequence = sequence_of(0, 10, 30, stop_ids=(stop,), is_serial=True)
    driver = driver_of(sequence, cache=cache_of(draft_len=3))
    driver.step()
    sequence.drafts = tuple(synthetic_token(0, place) for place in range(11, 14))
    driver.step()
    assert sequence.finish_reason == "stop"
    assert sequence.tokens[-1] == stop
    assert len(sequence.tokens) == 13
    assert is_empty(driver.cache)


def test_drafts_shrink_to_the_budget_and_leave_rows_for_prompts() -> None:
    sequences = [sequence_of(number, 5, 50, is_serial=True) for number in range(4)]
    driver = driver_of(*sequences, cache=cache_of(draft_len=8, rows=5), max_batched_tokens=30, prefill_chunk=10)
    driver.step()
    driver.scheduler.add(sequence_of(4, 100))
    for sequence in sequences:
        sequence.drafts = (1,) * 8
    plan = driver.step()
    assert shape(plan)[-1] == (4, 0, 10, False)
    assert plan.num_rows == 30
    assert [chunk.length for chunk in plan.chunks] == [9, 9, 1, 1, 10]


def test_drafts_shrink_to_the_memory() -> None:
    sequence = sequence_of(0, 28, 60, is_serial=True)
    driver = driver_of(sequence, cache=cache_of(pages=2, draft_len=8, max_len=32))
    driver.step()
    sequence.limit_len = 33  # more than this cache can hold, so that memory decides and not the limit
    sequence.drafts = (1,) * 8
    assert shape(driver.launch()) == [(0, 28, 4, True)]


def test_drafts_offered_too_late_are_not_used() -> None:
    sequence = sequence_of(0, 10, 20)
    driver = driver_of(sequence, depth=1, cache=cache_of(draft_len=3))
    driver.launch()
    sequence.drafts = (1, 2)
    assert shape(driver.launch()) == [(0, 10, 1, True)]


@pytest.mark.parametrize("depth", [0, 1])
def test_siblings_take_over_the_prompt_and_sample_its_next_token_themselves(depth: int) -> None:
    leader = sequence_of(0, 100, 5)
    siblings = [sequence_of(number, prompt_of(0, 100), 5, fork_of="r0") for number in (1, 2)]
    driver = driver_of(leader, *siblings, depth=depth)
    plans = [plan for plan in driver.run() if plan.chunks]
    assert [shape(plan) for plan in plans[:3]] == [
        [(0, 0, 64, False)],
        [(0, 64, 35, False)],
        [(0, 99, 1, True), (1, 99, 1, True), (2, 99, 1, True)],
    ]
    for sequence in (leader, *siblings):
        assert sequence.tokens[100:] == [synthetic_token(sequence.seed, place) for place in range(100, 105)]
    reports = {event.request_id: event.report for event in driver.events if isinstance(event, FinalOutput)}
    assert reports["r1"] is not None and reports["r1"].cut == "fork"
    assert is_empty(driver.cache)


def test_a_prompt_that_is_all_cached_is_forked_in_the_first_step() -> None:
    driver = driver_of(sequence_of(0, 97, 2))
    driver.run()
    for sequence in (sequence_of(1, prompt_of(0, 97), 2), sequence_of(2, prompt_of(0, 97), 2, fork_of="r1")):
        driver.scheduler.add(sequence)
    assert shape(driver.step()) == [(1, 96, 1, True)]
    assert driver.scheduler.num_running == 2
    assert shape(driver.step()) == [(1, 97, 1, True), (2, 96, 1, True)]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps", range(5))
def test_siblings_outlive_their_leader_at_any_moment(depth: int, steps: int) -> None:
    leader = sequence_of(0, 100, 50)
    siblings = [sequence_of(number, prompt_of(0, 100), 5, fork_of="r0") for number in (1, 2, 3)]
    driver = driver_of(leader, *siblings, depth=depth)
    for _ in range(steps):
        driver.step()
    driver.scheduler.finish(leader, "cancelled")
    driver.run()
    assert [sibling.finish_reason for sibling in siblings] == ["length"] * 3
    assert is_empty(driver.cache)


def test_siblings_of_a_retracted_leader_wait_for_themselves() -> None:
    leader, sibling = sequence_of(0, 100, 5), sequence_of(1, prompt_of(0, 100), 5, fork_of="r0")
    driver = driver_of(leader, sibling)
    driver.step()
    assert sibling.leader is leader
    driver.scheduler.retract_all()
    assert sibling.leader is None
    driver.run()
    assert [leader.finish_reason, sibling.finish_reason] == ["length", "length"]


def test_a_leader_outlives_siblings_that_were_cancelled() -> None:
    leader, sibling = sequence_of(0, 100, 5), sequence_of(1, prompt_of(0, 100), 5, fork_of="r0")
    driver = driver_of(leader, sibling)
    driver.step()
    driver.scheduler.finish(sibling, "cancelled")
    assert driver.scheduler.num_waiting == 0
    driver.run()
    assert leader.finish_reason == "length"


def test_siblings_without_a_row_wait_and_find_the_prompt_in_the_cache() -> None:
    leader = sequence_of(0, 100, 5)
    siblings = [sequence_of(number, prompt_of(0, 100), 5, fork_of="r0") for number in (1, 2, 3)]
    driver = driver_of(leader, *siblings, cache=cache_of(rows=2))
    driver.run()
    finals = {event.request_id: event for event in driver.events if isinstance(event, FinalOutput)}
    assert finals["r1"].cached_len == 99
    assert finals["r3"].cached_len == 96


@pytest.mark.parametrize(
    "changes", [{"fork_of": "unknown"}, {"priority": 1}, {"cache_salt": "x"}, {"use_cache": False}, {"prompt": 99}]
)
def test_whoever_cannot_fork_is_an_ordinary_request(changes: dict[str, object]) -> None:
    prompt = prompt_of(0, int(str(changes.pop("prompt", 100))))
    driver = driver_of(sequence_of(0, 100, 5))
    other = sequence_of(1, prompt, 5, **{"fork_of": "r0", **changes})  # type: ignore[arg-type]
    driver.scheduler.add(other)
    assert other.leader is None
    driver.run()
    assert sum(isinstance(event, FinalOutput) for event in driver.events) == 2


def test_a_sibling_that_comes_after_the_leaders_prompt_is_an_ordinary_request() -> None:
    driver = driver_of(sequence_of(0, 60, 9))
    driver.step()
    driver.step()
    driver.scheduler.add(sequence_of(1, prompt_of(0, 60), 5, fork_of="r0"))
    assert shape(driver.step())[1] == (1, 48, 12, True)


class Extras:
    """Remembers which positions were written, as "routes" of (sequence number, position)."""

    def __init__(self) -> None:
        self.rows: dict[int, NDArray[Any]] = {}

    def write(self, start: int, extras: RowExtras) -> None:
        assert extras.routes is not None
        self.rows.update({start + place: row for place, row in enumerate(extras.routes)})

    def read(self, start: int, end: int) -> RowExtras:
        return RowExtras(np.stack([self.rows[place] for place in range(start, end)]), None)

    def page(self, number: int) -> RowExtras:
        return self.read(16 * number, 16 * number + 16)


def test_extras_of_cached_and_computed_tokens_are_returned_together() -> None:
    cache = cache_of(keeps_extras=True)
    wants = {"return_routes": True}
    first = sequence_of(0, 100, 3, params=wants)
    second = sequence_of(1, prompt_of(0, 100), 3, params=wants)
    fork = sequence_of(2, prompt_of(0, 100), 3, params=wants, fork_of="r1")
    driver = driver_of(cache=cache)
    for arrivals in ([first], [second, fork]):
        for sequence in arrivals:
            sequence.extras = Extras()
            driver.scheduler.add(sequence)
        while driver.scheduler.num_running or driver.scheduler.num_waiting:
            plan = driver.launch()
            rows = [
                RowExtras(np.array([[[c.sequence.number, p]] for p in range(c.start, c.start + c.length)]), None)
                for c in plan.chunks
            ]
            driver.commit(gives(plan, {}, extras=tuple(rows)))
    finals = {event.request_id: event.extras for event in driver.events if isinstance(event, FinalOutput)}
    computed_by = {
        name: [tuple(route) for [route] in extras.routes.tolist()]
        for name, extras in finals.items()
        if extras is not None and extras.routes is not None
    }
    assert computed_by["r0"] == [(0, place) for place in range(102)]
    assert computed_by["r1"] == [(0 if place < 96 else 1, place) for place in range(102)]
    assert computed_by["r2"] == [(0 if place < 96 else 1 if place < 99 else 2, place) for place in range(102)]


def test_token_events_come_in_the_order_of_their_indices() -> None:
    driver = driver_of(*(sequence_of(number, 30, 20) for number in range(4)), depth=1)
    driver.run()
    for number in range(4):
        mine = [event for event in driver.events if event.request_id == f"r{number}"]
        assert [event.index for event in mine if isinstance(event, TokenEvent)] == list(range(20))
        assert isinstance(mine[-1], FinalOutput)
