"""The cache's memory can be given to others in a pause; what was running goes on afterwards with the same tokens."""

import weakref

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.weights import weights_checksum
from benthic.errors import RequestError
from benthic.models.transformer import Transformer
from tests.engine.test_control import drain, finals_of, other_weights, request_of
from tests.exactness.serving import answers, each_alone

SETTINGS = {"max_num_seqs": 4, "cache_bytes": 1 << 26, "debug_checks": True}


@pytest.mark.parametrize(
    "settings", [{"overlap_steps": 0}, {"overlap_steps": 1}, {"drafter": "mtp"}], ids=["plain", "overlap", "drafts"]
)
def test_pools_are_gone_while_released_and_tokens_are_the_same_afterwards(
    small_model: Transformer, settings: dict[str, object]
) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS, **settings))  # type: ignore[arg-type]
    requests = [request_of("a"), request_of("b", prompt_len=40)]
    for request in requests:
        engine.add(request)
    events = [event for _ in range(3) for event in engine.step()]
    events += engine.pause("keep")
    pools = weakref.ref(engine._parts.runner._pools)  # type: ignore[attr-defined]
    engine.release_memory()
    engine.release_memory()
    assert pools() is None
    late = request_of("late", prompt_len=30)
    engine.add(late)
    with pytest.raises(RequestError, match="take it again"):
        engine.resume()
    assert engine.step() == []
    engine.take_memory()
    engine.resume()
    assert answers(finals_of(events + drain(engine))) == each_alone(small_model, [*requests, late])
    engine.close()


def test_memory_is_given_back_in_a_pause_only(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="pause it"):
        engine.release_memory()
    assert not engine.has_released


def test_weights_may_change_and_requests_may_leave_while_the_memory_is_away(own_model: Transformer) -> None:
    engine = Engine(own_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    engine.add(request_of("leaves"))
    engine.step()
    engine.pause("keep")
    engine.release_memory()
    state = other_weights(11)
    assert engine.update_weights(state).version == 1
    assert engine.weights_checksum() == weights_checksum(state)
    engine.cancel("leaves")
    assert finals_of(engine.step())["leaves"].finish_reason == "cancelled"
    engine.take_memory()
    engine.resume()
    engine.add(request_of("b"))
    assert finals_of(drain(engine))["b"].finish_reason == "length"
    engine.check_laws()


def test_a_failure_while_the_memory_is_away_leaves_a_whole_engine(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    engine.add(request_of("a"))
    engine.step()
    engine.pause("keep")
    engine.release_memory()
    assert finals_of(engine.fail_all("gone"))["a"].finish_reason == "error"
    engine.take_memory()
    engine.resume()
    engine.add(request_of("b"))
    assert finals_of(drain(engine))["b"].finish_reason == "length"


def test_a_tensor_is_read_by_its_name(small_model: Transformer) -> None:
    engine = Engine(small_model, EngineConfig(**SETTINGS))  # type: ignore[arg-type]
    name, tensor = next(iter(small_model.state_dict().items()))
    found = engine.read_weight(name, 5)
    assert (found.shape, found.dtype) == (tuple(tensor.shape), "float32")
    assert list(found.values) == tensor.reshape(-1)[:5].tolist()
    with pytest.raises(RequestError, match=f"did you mean {name}"):
        engine.read_weight(name + "x", 5)
