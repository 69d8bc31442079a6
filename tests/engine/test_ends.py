"""An error names whose fault it was, and a first token says what the cache gave."""

import pytest
import torch

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request, TokenEvent
from benthic.engine.sampling import SamplingParams
from benthic.engine.worker import EngineWorker
from benthic.models.transformer import Transformer
from tests.engine.asking import receive_finals, request_of
from tests.engine.fakes import FAILS, FakeEngine


def config(**changes: object) -> EngineConfig:
    return EngineConfig(**{"max_num_seqs": 2, "max_model_len": 512, "debug_checks": True, **changes})  # type: ignore[arg-type]


def serve(engine: Engine, request: Request) -> tuple[list[TokenEvent], FinalOutput]:
    engine.add(request)
    events = []
    while engine.has_work():
        events += engine.step()
    *tokens, final = events
    assert isinstance(final, FinalOutput)
    return [token for token in tokens if isinstance(token, TokenEvent)], final


def test_a_good_end_has_no_kind_of_error(small_model: Transformer) -> None:
    _, final = serve(Engine(small_model, config()), request_of("a"))
    assert (final.finish_reason, final.error, final.error_kind) == ("length", None, None)


def test_a_request_out_of_time_says_timeout(small_model: Transformer) -> None:
    now_s = [0.0]
    engine = Engine(small_model, config(request_timeout_s=5.0), clock=lambda: now_s[0])
    engine.add(request_of("late", max_tokens=50))
    engine.step()
    now_s[0] = 6.0
    [final] = [event for event in engine.step() if isinstance(event, FinalOutput)]
    assert (final.finish_reason, final.error_kind) == ("error", "timeout")


def test_numbers_that_are_not_finite_say_so(own_model: Transformer) -> None:
    with torch.no_grad():
        own_model.embed.weight[7] = float("nan")
    _, final = serve(Engine(own_model, config()), request_of("sick", (5, 7)))
    assert (final.finish_reason, final.error_kind) == ("error", "numbers")


@pytest.mark.parametrize("is_sound", [True, False])
def test_a_failing_engine_says_engine(small_model: Transformer, is_sound: bool) -> None:
    engine = Engine(small_model, config())
    engine.add(request_of("a", max_tokens=50))
    engine.step()
    engine._is_sound = is_sound
    [final] = [event for event in engine.fail_all("it broke") if isinstance(event, FinalOutput)]
    assert (final.error, final.error_kind) == ("it broke", "engine")


def test_what_an_engine_refuses_behind_a_thread_is_told_from_what_fails_there(small_model: Transformer) -> None:
    worker = EngineWorker(Engine(small_model, config(max_num_seqs=1, max_num_waiting=1)))
    for name in "abc":  # before the thread runs: one too many
        worker.add(request_of(name))
    worker.add(request_of("wrong", (5, 600)))
    worker.start()
    finals = receive_finals(worker, 4)
    worker.close()
    kinds = {name: final.error_kind for name, final in finals.items()}
    assert kinds["wrong"] == "request"
    assert sorted(kind or "" for name, kind in kinds.items() if name != "wrong")[-1] == "capacity"
    failing = EngineWorker(FakeEngine())
    failing.start()
    failing.add(request_of("poison", (FAILS,)))
    assert receive_finals(failing, 1)["poison"].error_kind == "engine"
    failing.close()


@pytest.mark.parametrize("overlap_steps", [0, 1])
@pytest.mark.parametrize("drafter", ["none", "mtp"])
def test_the_first_token_and_no_other_says_what_the_cache_gave(
    small_model: Transformer, overlap_steps: int, drafter: str
) -> None:
    engine = Engine(small_model, config(overlap_steps=overlap_steps, drafter=drafter))
    prompt = tuple(range(2, 302))
    for name, cached_len in (("cold", 0), ("warm", 256)):
        tokens, final = serve(engine, request_of(name, prompt, max_tokens=5))
        assert [token.cached_len for token in tokens] == [cached_len, None, None, None, None]
        assert final.cached_len == cached_len


def test_a_request_that_leaves_the_cache_alone_takes_nothing_and_leaves_nothing(small_model: Transformer) -> None:
    engine = Engine(small_model, config())
    prompt, params = tuple(range(2, 302)), SamplingParams(max_tokens=2, ignore_eos=True)

    def cached_len(name: str, use_cache: bool) -> int:
        request = Request(request_id=name, prompt_ids=prompt, params=params, use_cache=use_cache)
        return serve(engine, request)[1].cached_len

    assert cached_len("private", False) == 0
    assert engine.stats().cached_pages == 0
    assert cached_len("first", True) == 0
    assert cached_len("private again", False) == 0
    assert cached_len("second", True) == 256
