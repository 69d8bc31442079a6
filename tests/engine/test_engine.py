"""Every request ends exactly once, for the right reason, and leaves nothing behind."""

from collections.abc import Iterable

import pytest

from benthic.engine.config import EngineConfig, engine_config
from benthic.engine.engine import Engine
from benthic.engine.request import Event, FinalOutput, Request, TokenEvent
from benthic.engine.sampling import SamplingParams, choice_params
from benthic.errors import CapacityError, ConfigError, PromptTooLong, RequestError
from benthic.models.transformer import Transformer


def request_of(name: str, prompt: Iterable[int] = (5, 6, 7), **params: object) -> Request:
    defaults: dict[str, object] = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}
    return Request(
        request_id=name,
        prompt_ids=tuple(prompt),
        params=SamplingParams(**(defaults | params)),  # type: ignore[arg-type]
    )


def drain(engine: Engine) -> list[Event]:
    events = []
    while engine.has_work():
        events += engine.step()
    return events


def final_of(events: list[Event], name: str) -> FinalOutput:
    [final] = [event for event in events if isinstance(event, FinalOutput) and event.request_id == name]
    return final


@pytest.fixture
def engine(small_model: Transformer) -> Engine:
    return Engine(
        small_model, EngineConfig(max_num_seqs=4, max_batched_tokens=64, max_model_len=256, debug_checks=True)
    )


def test_token_events_come_in_order_and_the_final_output_repeats_them(engine: Engine) -> None:
    engine.add(request_of("a", logprobs=2))
    events = drain(engine)
    tokens = [event for event in events if isinstance(event, TokenEvent)]
    assert [event.index for event in tokens] == [0, 1, 2, 3]
    assert isinstance(events[-1], FinalOutput)
    assert events[-1].token_ids == tuple(event.token_id for event in tokens)
    assert events[-1].logprobs == tuple(event.logprobs for event in tokens)
    assert events[-1].finish_reason == "length"


def test_greedy_tokens_are_the_most_likely_ones(engine: Engine) -> None:
    engine.add(request_of("a", logprobs=3))
    final = final_of(drain(engine), "a")
    assert final.logprobs is not None
    for token, entry in zip(final.token_ids, final.logprobs, strict=True):
        assert entry.top[0] == (token, entry.chosen)
        assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)


def test_a_stop_token_ends_the_request_and_is_named(engine: Engine) -> None:
    engine.add(request_of("free", max_tokens=6))
    free = final_of(drain(engine), "free")
    stop = free.token_ids[2]
    engine.add(request_of("stopped", max_tokens=6, stop_token_ids=(stop,)))
    stopped = final_of(drain(engine), "stopped")
    first = free.token_ids.index(stop)
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert (stopped.finish_reason, stopped.stop_token_id) == ("stop", stop)


def test_a_stop_token_cannot_come_before_min_tokens(engine: Engine) -> None:
    engine.add(request_of("free"))
    stop = final_of(drain(engine), "free").token_ids[0]
    engine.add(request_of("late", stop_token_ids=(stop,), min_tokens=3))
    late = final_of(drain(engine), "late")
    assert stop not in late.token_ids[:3]


def test_a_full_context_ends_a_request_without_max_tokens(engine: Engine) -> None:
    engine.add(request_of("a", prompt=[3] * 250, max_tokens=None))
    final = final_of(drain(engine), "a")
    assert (len(final.token_ids), final.finish_reason) == (6, "length")


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_cancelling_frees_everything_whenever_it_comes(engine: Engine, num_steps: int) -> None:
    for name in "abcdef":
        engine.add(request_of(name, prompt=[ord(name)] * 100, max_tokens=50))
    events = [event for _ in range(num_steps) for event in engine.step()]
    for name in "abcdef":
        engine.cancel(name)
    engine.cancel("nobody")
    events += engine.step()
    assert {final_of(events, name).finish_reason for name in "abcdef"} == {"cancelled"}
    assert not engine.has_work()
    assert engine.stats().used_pages == 0
    assert engine.stats().num_finished == 6


def test_a_cancel_after_the_end_does_nothing(engine: Engine) -> None:
    engine.add(request_of("a"))
    drain(engine)
    engine.cancel("a")
    engine.add(request_of("b"))
    assert final_of(drain(engine), "b").finish_reason == "length"


def test_the_others_go_on_after_a_cancel(engine: Engine) -> None:
    engine.add(request_of("alone", prompt=range(2, 90), max_tokens=8))
    expected = final_of(drain(engine), "alone").token_ids
    engine.add(request_of("gone", prompt=range(90, 200), max_tokens=100))
    engine.add(request_of("stays", prompt=range(2, 90), max_tokens=8))
    events = engine.step() + engine.step()
    engine.cancel("gone")
    assert final_of(events + drain(engine), "stays").token_ids == expected


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (request_of("x", prompt=[]), RequestError, "the prompt is empty"),
        (request_of("x", prompt=[5] * 256), PromptTooLong, "at most 255 leave room"),
        (request_of("x", prompt=[5, 512]), RequestError, "prompt holds 512; token ids are integers from 0 to 511"),
        (request_of("x", prompt=[-1]), RequestError, "prompt holds -1"),
        (request_of("x", stop_token_ids=(600,)), RequestError, "stop_token_ids holds 600"),
    ],
    ids=["empty", "too long", "beyond the vocabulary", "negative", "stop token beyond the vocabulary"],
)
def test_a_bad_request_is_refused_and_nothing_changes(
    engine: Engine, request_: Request, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        engine.add(request_)
    assert not engine.has_work()


def test_an_id_in_use_is_refused_and_the_first_goes_on(engine: Engine) -> None:
    engine.add(request_of("a"))
    with pytest.raises(RequestError, match="'a' is in use"):
        engine.add(request_of("a"))
    assert len(final_of(drain(engine), "a").token_ids) == 4


def test_a_full_queue_refuses(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(max_num_seqs=1, max_num_waiting=2, max_model_len=64))
    engine.add(request_of("a"))
    engine.add(request_of("b"))
    with pytest.raises(CapacityError, match="2 requests wait"):
        engine.add(request_of("c"))


def test_failing_all_ends_each_request_once_and_the_engine_works_on(engine: Engine) -> None:
    for name in "abcdef":
        engine.add(request_of(name, prompt=[9] * 90, max_tokens=50))
    engine.step()
    events = engine.fail_all("the step failed")
    assert {(e.request_id, e.finish_reason, e.error) for e in events if isinstance(e, FinalOutput)} == {
        (name, "error", "the step failed") for name in "abcdef"
    }
    assert engine.stats().used_pages == 0
    engine.add(request_of("next"))
    assert final_of(drain(engine), "next").finish_reason == "length"


def test_unseeded_requests_differ_and_seeded_ones_repeat(engine: Engine) -> None:
    for name, seed in [("a", None), ("b", None), ("c", 4), ("d", 4)]:
        engine.add(request_of(name, temperature=1.0, max_tokens=20, seed=seed))
    events = drain(engine)
    a, b, c, d = (final_of(events, name).token_ids for name in "abcd")
    assert a != b
    assert c == d


def test_choices_have_seeds_of_their_own_that_never_leave_64_bits() -> None:
    params = SamplingParams(seed=2**63 - 1, n=3, stop=("x",))
    assert [choice_params(params, i).seed for i in range(3)] == [2**63 - 1, -(2**63), -(2**63) + 1]
    assert choice_params(params, 1).n == 1
    assert choice_params(SamplingParams(n=2), 1).seed is None


def test_contradictory_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_batched_tokens \(8\) must be > max_num_seqs \(8\)"):
        EngineConfig(max_num_seqs=8, max_batched_tokens=8)
    with pytest.raises(ConfigError, match="num_threads is 0"):
        EngineConfig(num_threads=0)


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'max_num_seqs'"):
        engine_config(max_num_seq=3)


def test_min_tokens_is_refused_where_no_token_is_left_to_choose(engine: Engine) -> None:
    every = tuple(range(512))
    with pytest.raises(RequestError, match="min_tokens is 3 and every token of the vocabulary would end the answer"):
        engine.add(request_of("none", stop_token_ids=every, min_tokens=3))
    engine.add(request_of("one", stop_token_ids=every[:-1], min_tokens=3))
    [final] = [event for event in drain(engine) if isinstance(event, FinalOutput)]
    assert final.token_ids[:3] == (511, 511, 511)
