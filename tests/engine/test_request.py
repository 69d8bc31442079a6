"""Records of the engine: requests, sequences and their laws, engine settings."""

import dataclasses
import math
from typing import Any

import pytest

from benthic.engine.config import EngineConfig, engine_config
from benthic.engine.request import FinalOutput, Request, TokenEvent, TokenLogprobs
from benthic.engine.sampling import SamplingParams
from benthic.engine.sequence import Phase, Sequence
from benthic.errors import ConfigError, RequestError
from tests.engine.scheduling import cache_of, sequence_of


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("priority", 101, r"priority is 101; it must be an integer from -100 to 100"),
        ("priority", 1.0, r"priority is 1\.0; it must be an integer"),
        ("priority", True, r"priority is True; it must be an integer"),
        ("timeout_s", 0, r"timeout_s is 0; it must be a number of seconds > 0"),
        ("timeout_s", math.nan, r"timeout_s is nan; it must be a number of seconds > 0"),
        ("timeout_s", "5", r"timeout_s is '5'; it must be a number of seconds > 0"),
        ("timeout_s", True, r"timeout_s is True; it must be a number of seconds > 0"),
    ],
)
def test_a_wrong_field_of_a_request_is_refused_by_name(field: str, value: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        Request(request_id="a", prompt_ids=(1,), params=SamplingParams(), **{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be an integer >= 1"),
        ({"max_num_seqs": 2.0}, r"max_num_seqs is 2\.0; it must be an integer >= 1"),
        ({"retention_interval": 1000}, r"retention_interval \(1000\) must be a multiple of page_size \(128\)"),
        ({"draft_len": 9}, "draft_len is 9; it must be an integer from 1 to 8"),
        ({"cache_bytes": 0}, "cache_bytes is 0; it must be an integer >= 1"),
        ({"max_model_len": 1}, "max_model_len is 1; it must be an integer >= 2"),
        ({"priority_aging_s": 0}, "priority_aging_s is 0; it must be a finite number of seconds > 0"),
        ({"stall_timeout_s": math.inf}, "stall_timeout_s is inf; it must be a finite number"),
        ({"request_timeout_s": -1.0}, r"request_timeout_s is -1\.0; it must be a finite number"),
        ({"drafter": "eagle"}, "drafter is 'eagle'; it must be one of 'none', 'ngram', 'mtp'"),
        ({"overlap_steps": 2}, "overlap_steps is 2; it must be one of None, 0, 1"),
        ({"overlap_steps": True}, "overlap_steps is True; it must be one of"),
        ({"retention": "all"}, "retention is 'all'; it must be one of 'boundaries'"),
        ({"cache_storage": "fp8"}, "cache_storage is 'fp8'; it must be one of 'wide', 'official'"),
        ({"retention_interval": 100}, r"retention_interval \(100\) must be a multiple of page_size \(128\)"),
        ({"max_batched_tokens": 64}, r"max_batched_tokens \(64\) must be > max_num_seqs \(64\)"),
        ({"darfter": "mtp"}, "there is no engine setting 'darfter'; did you mean 'drafter'"),
    ],
)
def test_a_wrong_engine_setting_is_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        engine_config(**settings)


def test_drafts_need_room_only_with_a_drafter() -> None:
    assert EngineConfig(draft_len=5).max_draft_len == 0
    assert EngineConfig(draft_len=5, drafter="mtp").max_draft_len == 5


def test_records_that_travel_cannot_be_changed() -> None:
    request = sequence_of(0, 3).request
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.priority = 3  # type: ignore[misc]


def test_a_sequence_goes_from_waiting_to_running_and_back_and_ends_once() -> None:
    cache = cache_of()
    sequence = sequence_of(0, 20, arrived_s=2.0)
    row = cache.open(sequence.tokens, 20, ("",))
    assert row is not None
    sequence.admit(row, now_s=3.5)
    with pytest.raises(AssertionError):
        sequence.admit(row, now_s=3.5)
    sequence.retract()
    assert (sequence.phase, sequence.row, sequence.computed_len) == (Phase.WAITING, None, 0)
    final = sequence.finish("cancelled")
    assert final.report is not None
    assert (final.report.queued_s, final.report.num_retractions) == (1.5, 1)
    with pytest.raises(AssertionError):
        sequence.finish("cancelled")


def test_a_sequence_with_rows_in_flight_cannot_be_retracted() -> None:
    cache = cache_of()
    sequence = sequence_of(0, 20)
    row = cache.open(sequence.tokens, 20, ("",))
    assert row is not None
    sequence.admit(row, now_s=0.0)
    sequence.num_in_flight = 1
    with pytest.raises(AssertionError):
        sequence.retract()


def test_tokens_and_their_logprobs_end_up_in_events_and_in_the_final_output() -> None:
    cache = cache_of()
    sequence = sequence_of(0, 4, 3, stop_ids=(9,), params={"logprobs": 1})
    row = cache.open(sequence.tokens, 4, ("",))
    assert row is not None
    sequence.admit(row, now_s=0.0)
    sequence.known_len = 6
    likely, less = TokenLogprobs(-0.1, ((7, -0.1),)), TokenLogprobs(-2.0, ((8, -0.2),))
    assert sequence.append(7, likely, 3) == TokenEvent("r0", 0, 7, likely, 3, cached_len=0)
    assert sequence.natural_end() is None
    assert sequence.append(9, less, 4) == TokenEvent("r0", 1, 9, less, 4)
    assert sequence.natural_end() == "stop"
    final = sequence.finish("stop")
    assert isinstance(final, FinalOutput) and final.report is not None
    assert (final.token_ids, final.logprobs, final.stop_token_id) == ((7, 9), (likely, less), 9)
    assert final.report.weight_versions == (3, 4)


def test_a_stop_token_in_the_prompt_ends_nothing() -> None:
    assert sequence_of(0, (9, 9), 3, stop_ids=(9,)).natural_end() is None


def test_a_token_past_the_limit_is_a_mistake() -> None:
    cache = cache_of()
    sequence = sequence_of(0, 4, 1)
    row = cache.open(sequence.tokens, 4, ("",))
    assert row is not None
    sequence.admit(row, now_s=0.0)
    sequence.append(1)
    with pytest.raises(AssertionError):
        sequence.append(2)


def test_requests_without_a_seed_draw_their_own() -> None:
    request = Request(request_id="a", prompt_ids=(1,), params=SamplingParams(max_tokens=3))
    assert Sequence(request, 0, 4, frozenset()).seed != Sequence(request, 1, 4, frozenset()).seed


@pytest.mark.parametrize(("page_size", "interval"), [(64, 8192), (128, 8192), (192, 8064), (384, 8064), (16384, 16384)])
def test_the_interval_of_kept_windows_follows_from_the_page_size_where_it_is_not_given(
    page_size: int, interval: int
) -> None:
    assert engine_config(page_size=page_size).window_interval == interval
