"""An engine's process may die in any way and at any time: everybody gets an answer, and the next request works."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from benthic.engine.messages import Start
from benthic.engine.process import EngineProcess
from benthic.engine.request import FinalOutput, TokenEvent
from benthic.engine.supervisor import ChildProcess, RestartPolicy, Restarts
from benthic.errors import CheckpointError, ConfigError, EngineError, RequestError
from tests.engine.asking import first_event, held, is_running, receive_finals, request_of, until
from tests.engine.fakes import DIES, FAILS, HANGS, ORPHANS, STOPPING, STOPS, fake_spec

SOON = RestartPolicy(first_wait_s=0.01, max_early_deaths=3, early_s=0.0)


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    engine = EngineProcess(fake_spec(step_s=0.002), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    yield engine
    engine.close()


def kill(engine: EngineProcess) -> int:
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: engine.pid != pid)
    return pid


def failure(future: Future[str]) -> str:
    with pytest.raises(EngineError) as caught:
        future.result(20)
    return str(caught.value)


def test_requests_refusals_cancels_and_failing_steps_are_answered_as_by_a_thread(engine: EngineProcess) -> None:
    engine.add(request_of("fine"))
    engine.add(request_of("empty", prompt=()))
    finals = receive_finals(engine, 2)
    assert finals["fine"].token_ids == (0, 1, 2, 3)
    assert "the prompt is empty" in (finals["empty"].error or "")
    engine.add(request_of("long", max_tokens=10_000))
    assert isinstance(first_event(engine), TokenEvent)
    engine.cancel("long", "stop")
    assert receive_finals(engine, 1)["long"].finish_reason == "stop"
    engine.add(request_of("bad", prompt=(FAILS,)))
    assert "fell off the bus" in (receive_finals(engine, 1)["bad"].error or "")
    engine.add(request_of("again"))
    assert receive_finals(engine, 1)["again"].finish_reason == "length"
    assert engine.num_restarts == 0


def test_calls_are_carried_out_between_steps_and_answered(engine: EngineProcess, tmp_path: Path) -> None:
    engine.add(request_of("long", max_tokens=10_000))
    first_event(engine)
    engine.pause("keep").result(20)
    while engine.receive(0.1):
        pass
    assert engine.stats.num_running == 1
    assert engine.receive(0.1) == []
    assert "1 live, paused keep" in engine.dump().result(20)
    assert engine.update_weights(tmp_path, 5).result(20) == "5"
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        engine.update_weights(tmp_path / "absent", 6).result(20)
    engine.check().result(20)
    engine.flush().result(20)
    engine.resume().result(20)
    event = first_event(engine)
    assert isinstance(event, TokenEvent) and event.weight_version == 5
    engine.pause("abort").result(20)
    assert receive_finals(engine, 1)["long"].finish_reason == "cancelled"


def test_a_kill_in_the_middle_of_streams_answers_everybody_once_and_the_next_request_works(
    engine: EngineProcess,
) -> None:
    """B177: a dead engine is noticed, its requests are answered, and another takes its place."""
    for turn in range(3):
        for i in range(20):
            engine.add(request_of(f"{turn}-{i}", max_tokens=10_000, logprobs=0))
        first_event(engine)
        call = engine.dump()
        pid = kill(engine)
        finals = receive_finals(engine, 20)
        assert {final.finish_reason for final in finals.values()} == {"error"}
        assert all("was killed by SIGKILL" in (final.error or "") for final in finals.values())
        assert all(final.token_ids == tuple(range(len(final.token_ids))) for final in finals.values())
        assert call.done()
        assert not is_running(pid)
        engine.add(request_of(f"next {turn}"))
        assert receive_finals(engine, 1)[f"next {turn}"].token_ids == (0, 1, 2, 3)
        engine.check().result(20)


def test_a_request_that_kills_its_engine_ends_with_an_error_and_so_do_its_neighbours(engine: EngineProcess) -> None:
    engine.add(request_of("neighbour", max_tokens=10_000))
    engine.add(request_of("deadly", prompt=(DIES,)))
    finals = receive_finals(engine, 2)
    assert {final.finish_reason for final in finals.values()} == {"error"}


def test_many_lives_leave_no_descriptor_thread_zombie_or_file_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = held()
    engine = EngineProcess(fake_spec(), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    during = held()
    for turn in range(3):
        kill(engine)
        engine.add(request_of(f"{turn}"))
        assert receive_finals(engine, 1)[f"{turn}"].finish_reason == "length"
    assert held() == during
    engine.close()
    assert held() == before
    assert list(tmp_path.iterdir()) == []


def test_requests_that_come_while_the_engine_restarts_wait_and_may_be_cancelled(engine: EngineProcess) -> None:
    kill(engine)
    engine.add(request_of("waits"))
    engine.add(request_of("leaves"))
    with pytest.raises(RequestError, match="in use"):
        engine.add(request_of("waits"))
    engine.cancel("leaves")
    assert "restarting" in failure(engine.flush())
    finals = receive_finals(engine, 2)
    assert finals["leaves"].finish_reason == "cancelled"
    assert finals["waits"].finish_reason == "length"


def test_a_new_child_takes_over_the_pause_and_the_latest_weights(engine: EngineProcess, tmp_path: Path) -> None:
    engine.update_weights(tmp_path, 3).result(20)
    assert engine.update_weights(tmp_path).result(20) == "4"
    engine.pause("keep").result(20)
    kill(engine)
    assert until(lambda: engine.num_restarts == 1 and engine.state == "running")
    engine.add(request_of("a"))
    assert engine.receive(0.3) == []
    engine.resume().result(20)
    event = first_event(engine)
    assert isinstance(event, TokenEvent)
    assert event.weight_version == 4


def test_an_engine_that_cannot_be_built_says_why_and_is_not_tried_again() -> None:
    engine = EngineProcess(fake_spec(fails_at_start="config"), restarts=SOON)
    engine.start()
    with pytest.raises(ConfigError, match="step_s is 'x'"):
        engine.wait_ready(60)
    assert engine.state == "failed"
    with pytest.raises(EngineError, match="has failed"):
        engine.add(request_of("late"))
    engine.close()


def test_a_child_that_dies_at_its_first_start_is_an_error() -> None:
    engine = EngineProcess(fake_spec(fails_at_start="exit"), restarts=SOON)
    engine.add(request_of("early"))
    engine.start()
    with pytest.raises(EngineError, match="exit code 7"):
        engine.wait_ready(60)
    assert receive_finals(engine, 1)["early"].finish_reason == "error"
    engine.close()


def test_an_engine_that_dies_again_and_again_is_given_up_and_waiting_requests_are_answered(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    engine = EngineProcess(fake_spec(fails_at_start=str(trap)), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    trap.touch()
    kill(engine)
    engine.add(request_of("waits"))
    error = receive_finals(engine, 1)["waits"].error or ""
    assert "exit code 7" in error and "not started any more" in error
    assert engine.state == "failed"
    assert not engine.is_alive
    assert engine.num_restarts == 4
    assert "failed" in failure(engine.dump())
    engine.close()


def test_a_stalled_step_is_pictured_ended_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("benthic.engine.process._STALL_GRACE_S", 0.5)
    engine = EngineProcess(fake_spec(stall_timeout_s=0.5), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    engine.add(request_of("hangs", prompt=(HANGS,)))
    engine.add(request_of("waits", max_tokens=10_000))
    finals = receive_finals(engine, 2)
    assert all("that ran for more than 0.5 s" in (final.error or "") for final in finals.values())
    named = re.search(r"its state is in (\S+\.txt)", finals["hangs"].error or "")
    assert named is not None
    text = Path(named.group(1)).read_text()
    assert "in _suffer" in text
    assert "fake engine: " in text
    engine.add(request_of("next"))
    assert receive_finals(engine, 1)["next"].finish_reason == "length"
    engine.close()


def test_a_child_that_stops_inside_a_reply_is_ended_and_its_requests_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benthic.engine.process._STALL_GRACE_S", 0.5)
    engine = EngineProcess(fake_spec(stall_timeout_s=0.5), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    engine.add(request_of("stops", prompt=(STOPS,)))
    error = receive_finals(engine, 1)["stops"].error or ""
    assert "for more than 0.5 s" in error
    engine.add(request_of("next"))
    assert receive_finals(engine, 1)["next"].finish_reason == "length"
    engine.close()


def test_a_call_whose_reply_never_comes_ends_with_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benthic.engine.process._STALL_GRACE_S", 0.5)
    engine = EngineProcess(fake_spec(stall_timeout_s=0.5), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    (tmp_path / "weights").write_text(STOPPING)
    assert "no sign of life for more than 0.5 s" in failure(engine.update_weights(tmp_path))
    engine.close()


def test_closing_keeps_its_limit_although_the_child_has_stopped_inside_a_reply() -> None:
    engine = EngineProcess(fake_spec(), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    engine.add(request_of("stops", prompt=(STOPS,)))
    time.sleep(0.5)
    began = time.monotonic()
    engine.close(timeout_s=0.5)
    assert time.monotonic() - began < 3
    assert receive_finals(engine, 1)["stops"].finish_reason == "error"


def test_a_process_that_a_child_leaves_behind_with_its_pipes_holds_nobody_up(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benthic.engine.supervisor._EXIT_S", 0.3)
    began = time.monotonic()
    engine.add(request_of("orphans", prompt=(ORPHANS,)))
    assert "SIGKILL" in (receive_finals(engine, 1)["orphans"].error or "")
    engine.add(request_of("next"))
    assert receive_finals(engine, 1)["next"].finish_reason == "length"
    assert time.monotonic() - began < 4.5


def test_removed_dump_files_cost_nothing_but_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cleaner of temporary files takes those that have not been written to for days."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "dumps"))
    monkeypatch.setattr("benthic.engine.process._STALL_GRACE_S", 0.5)
    (tmp_path / "dumps").mkdir()
    engine = EngineProcess(fake_spec(stall_timeout_s=0.5), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    (found,) = (tmp_path / "dumps").iterdir()
    found.unlink()
    kill(engine)
    engine.add(request_of("after a kill"))
    assert receive_finals(engine, 1)["after a kill"].finish_reason == "length"
    shutil.rmtree(tmp_path / "dumps")  # from here on none can be made
    for turn in range(2):
        engine.add(request_of(f"hangs {turn}", prompt=(HANGS,)))
        assert "ran for more than 0.5 s" in (receive_finals(engine, 1)[f"hangs {turn}"].error or "")
        engine.add(request_of(f"next {turn}"))
        assert receive_finals(engine, 1)[f"next {turn}"].finish_reason == "length"
    engine.close()


def test_a_signal_without_a_name_is_a_death_like_another(engine: EngineProcess) -> None:
    pid = engine.pid
    assert pid is not None
    engine.add(request_of("long", max_tokens=10_000))
    first_event(engine)
    os.kill(pid, signal.SIGRTMIN + 3)
    assert f"killed by signal {signal.SIGRTMIN + 3}" in (receive_finals(engine, 1)["long"].error or "")
    engine.add(request_of("next"))
    assert receive_finals(engine, 1)["next"].finish_reason == "length"


def test_the_child_ends_when_its_parent_is_killed() -> None:
    script = (
        "import sys, time\n"
        "from benthic.engine.process import EngineProcess\n"
        "from tests.engine.asking import request_of\n"
        "from tests.engine.fakes import HANGS, fake_spec\n"
        "engine = EngineProcess(fake_spec())\n"
        "engine.start()\n"
        "engine.wait_ready(60)\n"
        "engine.add(request_of('hangs', prompt=(HANGS,)))\n"
        "print(engine.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_running(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert until(lambda: not is_running(child), 5)


def test_every_request_and_call_of_many_threads_is_answered_once_while_children_die(engine: EngineProcess) -> None:
    calls: list[Future[str]] = []

    def ask(thread: int) -> None:
        for i in range(150):
            engine.add(request_of(f"{thread}-{i}", max_tokens=i % 20 + 1))
            if i % 3 == 0:
                engine.cancel(f"{thread}-{i - 1}")
            if i % 10 == 0:
                calls.append(engine.check())
            time.sleep(0.01)

    threads = [threading.Thread(target=ask, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.25)
        if engine.state == "running":
            kill(engine)
    finals = receive_finals(engine, 600)
    assert engine.receive(0.2) == []
    assert {final.finish_reason for final in finals.values()} == {"length", "cancelled", "error"}
    assert all(call.exception(20) is None or isinstance(call.exception(), EngineError) for call in calls)
    assert engine.num_restarts >= 2


def test_signals_for_the_whole_group_leave_the_engine_to_its_parent(engine: EngineProcess) -> None:
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    engine.add(request_of("a"))
    assert receive_finals(engine, 1)["a"].finish_reason == "length"
    assert engine.pid == pid


def test_a_slow_reader_does_not_hold_the_engine_up(engine: EngineProcess) -> None:
    for i in range(50):
        engine.add(request_of(str(i), max_tokens=200))
    assert until(lambda: engine.stats.num_finished == 50)
    events = [event for batch in iter(lambda: engine.receive(0.1), []) for event in batch]
    assert sum(isinstance(event, TokenEvent) for event in events) == 50 * 200
    assert sum(isinstance(event, FinalOutput) for event in events) == 50


def test_a_child_that_does_not_listen_never_holds_its_callers_up(engine: EngineProcess) -> None:
    pid = engine.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    engine.add(request_of("big", prompt=(5,) * 1_000_000))
    call = engine.dump()
    assert time.monotonic() - began < 2
    os.kill(pid, signal.SIGCONT)
    assert receive_finals(engine, 1)["big"].finish_reason == "length"
    call.result(20)


def test_closing_answers_what_is_live_and_ends_the_child(engine: EngineProcess) -> None:
    pid = engine.pid
    assert pid is not None
    engine.add(request_of("long", max_tokens=10_000))
    first_event(engine)
    engine.close()
    assert receive_finals(engine, 1)["long"].error == "the engine was closed"
    assert not is_running(pid)
    with pytest.raises(RequestError, match="close"):
        engine.add(request_of("late"))
    assert "closed" in failure(engine.dump())
    engine.close()


def test_closing_does_not_wait_longer_for_a_hanging_step_than_it_is_told() -> None:
    engine = EngineProcess(fake_spec(), restarts=SOON)
    engine.start()
    engine.wait_ready(60)
    engine.add(request_of("hangs", prompt=(HANGS,)))
    assert until(lambda: engine.pid is not None)
    time.sleep(0.2)
    began = time.monotonic()
    engine.close(timeout_s=0.5)
    assert time.monotonic() - began < 5
    assert receive_finals(engine, 1)["hangs"].finish_reason == "error"


def test_closing_while_the_child_still_loads_ends_at_once() -> None:
    engine = EngineProcess(fake_spec(), restarts=SOON)
    engine.start()
    began = time.monotonic()
    engine.close()
    assert time.monotonic() - began < 3
    with pytest.raises(EngineError, match="closed"):
        engine.wait_ready(1)


def test_closing_before_the_child_is_there_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    is_closed = threading.Event()

    def made_late(start: Start) -> ChildProcess:
        assert is_closed.wait(20)
        return ChildProcess(start)

    monkeypatch.setattr("benthic.engine.process.ChildProcess", made_late)
    engine = EngineProcess(fake_spec(), restarts=SOON)
    engine.start()
    closer = threading.Thread(target=engine.close)
    closer.start()
    assert until(lambda: engine.state == "closed")
    is_closed.set()
    closer.join(10)
    assert not closer.is_alive()


def test_an_engine_closed_before_its_start_answers_what_came() -> None:
    engine = EngineProcess(fake_spec())
    engine.add(request_of("early"))
    engine.close()
    assert receive_finals(engine, 1)["early"].error == "the engine was closed"
    with pytest.raises(EngineError, match="closed"):
        engine.wait_ready(1)
    engine.start()
    assert engine.state == "closed"


def test_early_deaths_wait_longer_each_time_until_none_follows_and_a_useful_life_forgives() -> None:
    restarts = Restarts(RestartPolicy(first_wait_s=1, max_wait_s=3, early_s=10, max_early_deaths=5))
    assert [restarts.wait_s(1, was_useful=False) for _ in range(4)] == [1, 2, 3, 3]
    assert restarts.wait_s(11, was_useful=False) == 1
    assert restarts.wait_s(1, was_useful=True) == 1
    assert [restarts.wait_s(1, was_useful=False) for _ in range(5)] == [1, 2, 3, 3, None]
    assert restarts.num_deaths == 11
