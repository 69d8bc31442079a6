"""A child that replaces a dead one has the very weights that were in force, or says that it needs some."""

import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.engine.process import EngineProcess
from benthic.engine.request import TokenEvent
from benthic.engine.supervisor import RestartPolicy, Silence
from benthic.errors import CheckpointError, EngineError, RequestError
from tests.engine.asking import first_event, held, receive_finals, request_of, until
from tests.engine.fakes import HANGING, fake_spec

SOON = RestartPolicy(first_wait_s=0.01, max_early_deaths=5, early_s=0.0)


def started(stall_timeout_s: float = 60.0) -> EngineProcess:
    engine = EngineProcess(fake_spec(step_s=0.001, stall_timeout_s=stall_timeout_s), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    return engine


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    engine = started()
    yield engine
    engine.close()


def killed(engine: EngineProcess) -> None:
    """Ends the child and waits for the next one."""
    pid, num_restarts = engine.pid, engine.num_restarts
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    is_back = until(lambda: engine.num_restarts > num_restarts and engine.state in ("running", "needs weights"))
    assert is_back


def content(engine: EngineProcess) -> tuple[str, int]:
    """Text and version of the weights that answer."""
    engine.add(request_of("version"))
    event = first_event(engine)
    assert isinstance(event, TokenEvent)
    receive_finals(engine, 1)
    return engine.dump().result(20).rpartition("weights ")[2], event.weight_version


def replaced(path: Path, text: str) -> None:
    """Another file takes the name, as `write_weights` does it."""
    other = path.with_suffix(".new")
    other.write_text(text)
    other.replace(path)


@pytest.mark.parametrize("fate", ["stays", "is replaced", "is removed", "is moved with its folder"])
def test_whatever_becomes_of_the_file_its_weights_are_loaded_again(
    engine: EngineProcess, tmp_path: Path, fate: str
) -> None:
    path = tmp_path / "box" / "W.st"
    path.parent.mkdir()
    path.write_text("six")
    engine.update_weights(path, 6).result(20)
    if fate == "is replaced":
        replaced(path, "others")
    elif fate == "is removed":
        path.unlink()
    elif fate == "is moved with its folder":
        shutil.move(path.parent, tmp_path / "elsewhere")
    for _ in range(2):
        killed(engine)
        assert content(engine) == ("six", 6)
    path.parent.mkdir(exist_ok=True)
    replaced(path, "others")
    with pytest.raises(RequestError, match="version is 6"):
        engine.update_weights(path, 6).result(20)


@pytest.mark.parametrize("is_folder", [True, False])
def test_weights_that_were_overwritten_are_never_taken_for_those_that_were_in_force(
    engine: EngineProcess, tmp_path: Path, is_folder: bool
) -> None:
    path = tmp_path / "W.st"
    path.write_text("six")
    source = tmp_path if is_folder else path
    engine.update_weights(source, 6).result(20)
    path.write_text("others")  # the same inode
    killed(engine)
    assert until(lambda: engine.state == "needs weights")
    engine.add(request_of("refused"))
    assert "the engine needs weights: those of version 6" in (receive_finals(engine, 1)["refused"].error or "")
    killed(engine)
    assert until(lambda: engine.state == "needs weights")
    assert engine.update_weights(source, 7).result(20) == "7"
    assert until(lambda: engine.state == "running")
    assert content(engine) == ("others", 7)
    killed(engine)
    assert content(engine) == ("others", 7)


def test_a_refused_file_is_named_as_the_caller_named_it_and_nothing_stays_open(
    engine: EngineProcess, tmp_path: Path
) -> None:
    path = tmp_path / "W.st"
    path.write_text("six")
    before = held()
    for version in range(1, 4):
        engine.update_weights(path, version).result(20)
    assert held()[0] == before[0] + 1
    with pytest.raises(CheckpointError, match=f"the weights at {path} have checksum six"):
        engine.update_weights(path, 9, "other").result(20)
    engine.update_weights(tmp_path, 4).result(20)
    assert held() == before


def test_a_state_dict_does_not_go_to_another_process(engine: EngineProcess) -> None:
    with pytest.raises(RequestError, match="write them to a file with write_weights"):
        engine.update_weights({"content": "a"})


@pytest.mark.parametrize("has_request", [False, True])
def test_a_child_that_was_stopped_while_idle_is_noticed_by_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_request: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("benthic.engine.process._STALL_GRACE_S", 0.3)
    engine = started(stall_timeout_s=0.5)
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    assert engine.num_restarts == 0  # nothing is awaited of it
    if has_request:
        engine.add(request_of("a"))
        assert "no sign of life for more than 0.5 s" in (receive_finals(engine, 1)["a"].error or "")
    else:
        with pytest.raises(EngineError, match=r"no sign of life for more than 0\.5 s"):
            engine.check().result(20)
    assert any("benthic/engine/child.py" in file.read_text() for file in tmp_path.iterdir())
    engine.add(request_of("next"))
    assert receive_finals(engine, 1)["next"].finish_reason == "length"
    engine.close()


def test_a_call_that_hangs_is_ended_like_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("benthic.engine.process._STALL_GRACE_S", 0.3)
    engine = started(stall_timeout_s=0.5)
    path = tmp_path / "W.st"
    path.write_text(HANGING)
    with pytest.raises(EngineError, match=r"a step or call that ran for more than 0\.5 s"):
        engine.update_weights(path).result(20)
    engine.add(request_of("next"))
    assert receive_finals(engine, 1)["next"].finish_reason == "length"
    engine.close()


def test_an_engine_that_waits_on_purpose_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benthic.engine.process._STALL_GRACE_S", 0.2)
    engine = started(stall_timeout_s=0.3)
    engine.pause("keep").result(20)
    engine.add(request_of("waits"))
    time.sleep(1.5)
    assert engine.num_restarts == 0
    engine.resume().result(20)
    assert receive_finals(engine, 1)["waits"].finish_reason == "length"
    engine.close()


def test_silence_ends_with_any_sign_and_does_not_count_what_nobody_watched() -> None:
    silence = Silence()
    assert silence.lasted_s((1, 1), 100.0, is_awaited=True) == 0
    assert silence.lasted_s((1, 1), 100.5, is_awaited=True) == 0.5
    assert silence.lasted_s((1, 1), 500.0, is_awaited=True) == 1.5
    assert silence.lasted_s((1, 2), 500.5, is_awaited=True) == 0
    assert silence.lasted_s((1, 2), 501.0, is_awaited=True) == 0.5
    assert silence.lasted_s((1, 2), 501.5, is_awaited=False) == 0
