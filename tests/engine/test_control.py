"""Pausing, new weights and flushing: between passes, all or nothing, and no token of two versions."""

import math
import random
from dataclasses import replace

import pytest
import torch

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import Event, FinalOutput, Request, TokenEvent
from benthic.engine.sampling import SamplingParams
from benthic.engine.weights import weights_checksum
from benthic.engine.worker import EngineWorker
from benthic.errors import CheckpointError, EngineError, RequestError, WeightsLostError
from benthic.models.checkpoint import dummy_model, save_checkpoint
from benthic.models.transformer import Transformer
from tests.engine.asking import receive_finals
from tests.engine.conftest import CONFIG, build_model
from tests.exactness.serving import answers, each_alone, serve

SETTINGS = {"max_num_seqs": 4, "cache_bytes": 1 << 26, "debug_checks": True}


def request_of(name: str, prompt_len: int = 150, max_tokens: int = 12, seed: int = 1) -> Request:
    rng = random.Random(prompt_len)
    params = SamplingParams(max_tokens=max_tokens, seed=seed, logprobs=0, ignore_eos=True)
    return Request(request_id=name, prompt_ids=tuple(rng.randrange(2, 512) for _ in range(prompt_len)), params=params)


def drain(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while engine.has_work():
        events += engine.step()
    return events


def finals_of(events: list[Event]) -> dict[str, FinalOutput]:
    return {event.request_id: event for event in events if isinstance(event, FinalOutput)}


def other_weights(seed: int) -> dict[str, torch.Tensor]:
    model = dummy_model(CONFIG, seed=seed, device="cpu", min_rows=1)
    return {
        name: 6.0 * tensor if tensor.ndim >= 2 and "hc_" not in name and tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
    }


def model_with(state: dict[str, torch.Tensor]) -> Transformer:
    model = build_model()
    model.load_state_dict(state)
    return model.freeze()


@pytest.mark.parametrize("overlap_steps", [0, 1])
@pytest.mark.parametrize("mode", ["keep", "retract"])
def test_a_paused_engine_computes_nothing_and_goes_on_with_the_same_tokens(
    small_model: Transformer, mode: str, overlap_steps: int
) -> None:
    engine = Engine(small_model, EngineConfig(overlap_steps=overlap_steps, **SETTINGS))  # type: ignore[arg-type]
    requests = [request_of("a"), request_of("b", prompt_len=40)]
    for request in requests:
        engine.add(request)
    events = [event for _ in range(4) for event in engine.step()]
    events += engine.pause(mode)  # type: ignore[arg-type]
    assert not engine.has_work()
    num_steps = engine.stats().num_steps
    assert engine.step() == []
    assert engine.stats().num_steps == num_steps
    assert engine.stats().num_running == (2 if mode == "keep" else 0)
    engine.resume()
    assert answers(finals_of(events + drain(engine))) == each_alone(small_model, requests)


def test_aborting_ends_every_request_as_cancelled_and_new_ones_wait_for_resume(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    engine.add(request_of("a"))
    engine.step()
    finals = finals_of(engine.pause("abort"))
    assert finals["a"].finish_reason == "cancelled"
    assert engine.stats().used_pages == 0
    engine.add(request_of("b"))
    assert not engine.has_work()
    engine.resume()
    assert finals_of(drain(engine))["b"].finish_reason == "length"


def test_a_request_cancelled_in_a_pause_ends_in_the_pause(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    engine.add(request_of("a"))
    engine.step()
    engine.pause("keep")
    engine.cancel("a")
    assert engine.has_work()
    assert finals_of(engine.step())["a"].finish_reason == "cancelled"


@pytest.mark.parametrize("overlap_steps", [0, 1])
def test_after_an_update_every_token_is_that_of_a_fresh_engine_with_the_new_weights(
    own_model: Transformer, overlap_steps: int
) -> None:
    """Three updates, a shared prompt that was cached under each, and a request in the middle of its answer."""
    engine = Engine(own_model, EngineConfig(overlap_steps=overlap_steps, **SETTINGS))  # type: ignore[arg-type]
    serve(engine, [request_of("warm", prompt_len=300)])
    for version, seed in enumerate((11, 12, 13), start=1):
        running = request_of(f"running {version}", prompt_len=300, max_tokens=20)
        engine.add(running)
        events = [event for _ in range(5) for event in engine.step()]
        state = other_weights(seed)
        events += engine.update_weights(state, checksum=weights_checksum(state)).events
        assert {event.weight_version for event in events if isinstance(event, TokenEvent)} == {version - 1}
        before = [event.token_id for event in events if isinstance(event, TokenEvent)]
        later = drain(engine)
        assert {event.weight_version for event in later if isinstance(event, TokenEvent)} == {version}
        fresh = model_with(state)
        # What was drawn before stays; what follows is the new weights' continuation of it.
        continued = Request(
            request_id="c",
            prompt_ids=(*running.prompt_ids, *before),
            params=SamplingParams(max_tokens=20 - len(before), seed=1, logprobs=0, ignore_eos=True),
        )
        expected = each_alone(fresh, [continued])["c"]
        final = finals_of(later)[running.request_id]
        assert final.token_ids == (*before, *expected[0])  # type: ignore[misc]
        assert final.report is not None and final.report.weight_versions == (version - 1, version)
        new = request_of("new", prompt_len=300)
        assert answers(serve(engine, [new])) == each_alone(fresh, [new])
        assert weights_checksum(own_model.state_dict()) == weights_checksum(fresh.state_dict())


@pytest.mark.parametrize("damage", ["missing", "unexpected", "shape", "nan", "checksum"])
def test_a_bad_update_changes_nothing(own_model: Transformer, damage: str) -> None:
    engine = Engine(own_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    request = request_of("a")
    expected = each_alone(own_model, [request])
    state = other_weights(11)
    checksum = weights_checksum(state)
    if damage == "missing":
        del state["norm.weight"]
    elif damage == "unexpected":
        state["layers.9.extra"] = torch.zeros(1)
    elif damage == "shape":
        state["norm.weight"] = torch.ones(3)
    elif damage == "nan":
        state["norm.weight"] = torch.full((64,), float("nan"))
        checksum = weights_checksum(state)
    else:
        state["norm.weight"] = state["norm.weight"] + 1
    engine.add(request)
    events = engine.step() + engine.step()
    with pytest.raises(CheckpointError):
        engine.update_weights(state, checksum=checksum)
    assert engine.stats().weight_version == 0
    assert answers(finals_of(events + drain(engine))) == expected


def test_an_engine_itself_keeps_a_version_from_standing_for_two_sets_of_weights(own_model: Transformer) -> None:
    engine = Engine(own_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    for version in (0, 3):
        engine.add(request_of(f"running {version}"))
        engine.step()
        expected = weights_checksum(own_model.state_dict())
        with pytest.raises(RequestError, match=f"the weights' version is {version}, which stands for"):
            engine.update_weights(other_weights(12), version=version)
        assert weights_checksum(own_model.state_dict()) == expected
        assert finals_of(drain(engine))[f"running {version}"].finish_reason == "length"
        update = engine.update_weights(other_weights(11), version=3)
        assert (update.version, engine.stats().weight_version) == (3, 3)
        assert update.checksum == weights_checksum(other_weights(11))
    assert engine.update_weights(other_weights(12)).version == 4
    with pytest.raises(RequestError, match="the weights' version is 2"):
        engine.update_weights(other_weights(13), version=2)


def test_an_engine_that_replaces_another_one_knows_its_versions(own_model: Transformer) -> None:
    engine = Engine(own_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    engine.know_versions([(5, weights_checksum(other_weights(11))), (6, "others")])
    with pytest.raises(RequestError, match="the weights' version is 6"):
        engine.update_weights(other_weights(11), version=6)
    assert engine.update_weights(other_weights(11), version=5).version == 5
    assert engine.update_weights(other_weights(12)).version == 7


def test_weights_come_from_a_folder_too(own_model: Transformer, tmp_path: object) -> None:
    fresh = model_with(other_weights(11))
    save_checkpoint(fresh, f"{tmp_path}/new", weights="fp32")
    engine = Engine(own_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    engine.update_weights(f"{tmp_path}/new", version=7)
    request = request_of("a")
    assert answers(serve(engine, [request])) == each_alone(fresh, [request])
    assert engine.stats().weight_version == 7


def test_a_flush_forgets_what_nobody_holds(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    serve(engine, [request_of("a", prompt_len=300)])
    assert engine.stats().cached_pages > 0
    engine.flush()
    assert (engine.stats().cached_pages, engine.stats().used_pages) == (0, 0)
    assert serve(engine, [request_of("b", prompt_len=300)])["b"].cached_len == 0


@pytest.mark.parametrize("mode", ["keep", "retract"])
def test_a_request_times_out_in_a_pause_as_well(small_model: Transformer, mode: str) -> None:
    now_s = 100.0
    engine = Engine(small_model, EngineConfig(**SETTINGS), clock=lambda: now_s)  # type: ignore[arg-type]
    engine.add(replace(request_of("late"), timeout_s=2.0))
    engine.add(replace(request_of("patient"), timeout_s=50.0))
    engine.add(request_of("endless"))
    engine.step()
    engine.pause(mode)  # type: ignore[arg-type]
    assert (engine.has_work(), engine.idle_s()) == (False, 2.0)
    now_s = 102.5
    assert engine.has_work()
    finals = finals_of(engine.step())
    assert list(finals) == ["late"]
    assert "timed out after 2.5 s" in (finals["late"].error or "")
    assert (engine.has_work(), engine.idle_s()) == (False, 47.5)
    engine.cancel("patient")
    engine.step()
    assert engine.idle_s() == math.inf


def test_the_loop_of_a_paused_engine_wakes_for_a_deadline(small_model: Transformer) -> None:
    worker = EngineWorker(Engine(small_model, EngineConfig(**SETTINGS)))  # type: ignore[arg-type]
    worker.start()
    worker.pause("keep").result(20)
    worker.add(replace(request_of("late"), timeout_s=0.3))
    assert "timed out" in (receive_finals(worker, 1)["late"].error or "")
    worker.close()


@pytest.mark.parametrize("has_old_weights", [True, False])
def test_an_update_that_fails_half_way_keeps_the_old_weights_or_says_that_there_are_none(
    own_model: Transformer, monkeypatch: pytest.MonkeyPatch, has_old_weights: bool
) -> None:
    worker = EngineWorker(Engine(own_model, EngineConfig(overlap_steps=1, **SETTINGS)))  # type: ignore[arg-type]
    request = replace(request_of("a"), params=replace(request_of("a").params, max_tokens=60))
    expected = each_alone(own_model, [request])
    checksum = weights_checksum(own_model.state_dict())
    failures = iter([True, not has_old_weights])

    def freeze(self: Transformer) -> Transformer:
        if next(failures, False):
            raise torch.OutOfMemoryError("no room to lay weights out")
        return real_freeze(self)

    real_freeze = Transformer.freeze
    monkeypatch.setattr(Transformer, "freeze", freeze)
    worker.start()
    worker.add(request)
    events = list(worker.receive(20))
    update = worker.update_weights(other_weights(11), 5)
    with pytest.raises(EngineError, match="no room to lay weights out") as caught:
        update.result(20)
    assert isinstance(caught.value, WeightsLostError) is not has_old_weights
    while not finals_of(events):
        events += worker.receive(20)
    final = finals_of(events)
    tokens = [event.token_id for event in events if isinstance(event, TokenEvent)]
    if has_old_weights:
        assert answers(final) == expected
        assert tokens == list(final["a"].token_ids)  # none was lost with the call
        assert weights_checksum(own_model.state_dict()) == checksum
    else:
        assert "the engine needs weights" in (final["a"].error or "")
        worker.update_weights(other_weights(11), 5).result(20)
        worker.add(request)
        healed = receive_finals(worker, 1)
        assert answers(healed) == each_alone(model_with(other_weights(11)), [request])
    worker.check().result(20)
    worker.close()


def test_what_is_no_mode_or_version_is_refused_by_the_engine_too(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="mode is 'bogus'"):
        engine.pause("bogus")  # type: ignore[arg-type]
    for version in (-5, "x", [1]):
        with pytest.raises(RequestError, match="the weights' version is"):
            engine.update_weights({}, version)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/tmp", "/", "x" * 5000, "a\0b", "/dev/null", "\ud800", "~", "."])
def test_a_path_without_a_checkpoint_is_an_error_of_the_checkpoint(small_model: Transformer, path: str) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    with pytest.raises(CheckpointError) as caught:
        engine.update_weights(path)
    assert len(str(caught.value)) < 1000
