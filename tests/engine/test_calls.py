"""A control call that goes wrong ends with its caller: requests, weights and the loop stay."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benthic.engine.weight_versions import WeightVersions
from benthic.engine.worker import EngineWorker
from benthic.errors import EngineError, RequestError, WeightsLostError
from tests.engine.asking import first_event, receive_finals, request_of, until
from tests.engine.fakes import EXHAUSTING, LOSING, FakeEngine


@pytest.fixture
def worker() -> Iterator[EngineWorker]:
    worker = EngineWorker(FakeEngine(step_s=0.001))
    worker.start()
    yield worker
    worker.close()


def test_a_call_that_fails_in_any_way_is_answered_and_the_requests_go_on(worker: EngineWorker) -> None:
    worker.add(request_of("bystander", max_tokens=300))
    first_event(worker)
    with pytest.raises(EngineError, match="MemoryError: no room for a second set"):
        worker.update_weights({"content": EXHAUSTING}, 3).result(5)
    with pytest.raises(EngineError, match="KeyError"):
        worker.update_weights({"no": "content"}, 3).result(5)
    assert receive_finals(worker, 1)["bystander"].finish_reason == "length"
    assert (worker.state, worker.stats.weight_version) == ("running", 0)


@pytest.mark.parametrize("version", [-5, "x", [1], True, 1.0, 2**63])
def test_what_is_no_version_is_refused_before_it_is_sent(worker: EngineWorker, version: Any) -> None:
    with pytest.raises(RequestError, match="the weights' version is .* it must be an integer in") as caught:
        worker.update_weights("somewhere", version)
    assert caught.value.param == "weight_version"


def test_what_is_no_mode_path_or_checksum_is_refused_before_it_is_sent(worker: EngineWorker) -> None:
    arguments: list[Any] = ["bogus", None, ["keep"]]
    for mode in arguments:
        with pytest.raises(RequestError, match="mode is .* it must be one of abort, keep, retract"):
            worker.pause(mode)
    sources: list[Any] = ["", None, 5, {}, b"bytes"]
    for source in sources:
        with pytest.raises(RequestError, match="the weights are .* they must be the folder") as caught:
            worker.update_weights(source)
        assert len(str(caught.value)) < 300
    checksum: Any = 5
    with pytest.raises(RequestError, match="checksum is 5"):
        worker.update_weights("somewhere", 1, checksum)


def test_an_engine_of_this_process_takes_a_state_dict(worker: EngineWorker) -> None:
    assert worker.update_weights({"content": "a"}).result(5) == "1"


def test_a_version_never_stands_for_two_sets_of_weights(worker: EngineWorker, tmp_path: Path) -> None:
    assert worker.update_weights({"content": "at start"}, 0).result(5) == "0"
    assert worker.update_weights({"content": "a"}, 5).result(5) == "5"
    for version in (5, 4, 0):
        with pytest.raises(RequestError, match=f"the weights' version is {version}"):
            worker.update_weights({"content": "b"}, version).result(5)
    assert worker.update_weights({"content": "b"}).result(5) == "6"
    assert worker.update_weights({"content": "a"}, 5).result(5) == "5"
    assert worker.update_weights({"content": "c"}).result(5) == "7"


def test_the_weights_of_the_start_are_read_only_when_their_version_is_asked_for() -> None:
    versions = WeightVersions(3)
    asked: list[int] = []

    def checksum_now() -> str:
        asked.append(1)
        return "start"

    assert versions.choose(4, "new", checksum_now) == 4
    assert asked == []
    assert versions.choose(3, "start", checksum_now) == 3
    with pytest.raises(RequestError, match="which stands for weights of checksum start"):
        versions.choose(3, "new", checksum_now)
    versions.installed(4, "new")
    with pytest.raises(RequestError, match="it must be 5 or more"):
        versions.choose(3, "start", checksum_now)


def test_lost_weights_end_the_requests_and_refuse_others_until_an_update(worker: EngineWorker) -> None:
    worker.add(request_of("running", max_tokens=10_000))
    first_event(worker)
    with pytest.raises(WeightsLostError):
        worker.update_weights({"content": LOSING}).result(5)
    assert "the engine needs weights" in (receive_finals(worker, 1)["running"].error or "")
    assert until(lambda: worker.state == "needs weights")
    assert worker.is_alive
    worker.add(request_of("late"))
    assert "the engine needs weights" in (receive_finals(worker, 1)["late"].error or "")
    worker.update_weights({"content": "good"}, 3).result(5)
    assert until(lambda: worker.state == "running")
    worker.add(request_of("next"))
    assert receive_finals(worker, 1)["next"].finish_reason == "length"
