"""The engine's thread answers every request and every call exactly once, whatever happens to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.engine.request import FinalOutput, TokenEvent
from benthic.engine.worker import EngineWorker
from benthic.errors import CheckpointError, EngineError, RequestError
from tests.engine.asking import first_event, receive_finals, request_of, until
from tests.engine.fakes import FAILS, HANGS, FakeEngine


@pytest.fixture
def worker() -> Iterator[EngineWorker]:
    worker = EngineWorker(FakeEngine(step_s=0.001))
    worker.start()
    yield worker
    worker.close()


def test_requests_from_outside_are_answered(worker: EngineWorker) -> None:
    for i in range(6):
        worker.add(request_of(str(i)))
    finals = receive_finals(worker, 6)
    assert {final.finish_reason for final in finals.values()} == {"length"}
    assert len({final.token_ids for final in finals.values()}) == 1


def test_waiting_for_nothing_returns_an_empty_list(worker: EngineWorker) -> None:
    assert worker.receive(timeout_s=0.01) == []


def test_a_refused_request_is_answered_with_the_reason(worker: EngineWorker) -> None:
    worker.add(request_of("empty", prompt=()))
    worker.add(request_of("fine"))
    finals = receive_finals(worker, 2)
    assert finals["empty"].finish_reason == "error"
    assert "the prompt is empty" in (finals["empty"].error or "")
    assert finals["fine"].finish_reason == "length"


def test_a_request_whose_id_is_live_or_whose_ids_are_no_integers_is_refused_at_once(worker: EngineWorker) -> None:
    worker.add(request_of("a", max_tokens=1000))
    with pytest.raises(RequestError, match="in use"):
        worker.add(request_of("a"))
    with pytest.raises(RequestError, match="plain integers"):
        worker.add(request_of("b", prompt=(True, 2)))


def test_a_cancelled_request_ends_soon_and_frees_its_pages(worker: EngineWorker) -> None:
    worker.add(request_of("long", max_tokens=10_000))
    assert isinstance(first_event(worker), TokenEvent)
    worker.cancel("long")
    final = receive_finals(worker, 1)["long"]
    assert final.finish_reason == "cancelled"
    assert len(final.token_ids) < 9_000
    worker.add(request_of("next"))
    receive_finals(worker, 1)
    assert worker.stats.num_running == 0
    assert worker.stats.used_pages == 0
    worker.check().result(5)


def test_a_front_door_that_found_a_stop_string_says_so(worker: EngineWorker) -> None:
    worker.add(request_of("long", max_tokens=10_000))
    first_event(worker)
    worker.cancel("long", "stop")
    assert receive_finals(worker, 1)["long"].finish_reason == "stop"


def test_a_failing_step_ends_its_requests_and_the_worker_lives_on(worker: EngineWorker) -> None:
    worker.add(request_of("bad", prompt=(FAILS, 1)))
    final = receive_finals(worker, 1)["bad"]
    assert final.finish_reason == "error"
    assert "the device fell off the bus" in (final.error or "")
    assert worker.is_alive
    worker.add(request_of("next"))
    assert receive_finals(worker, 1)["next"].finish_reason == "length"


def test_no_token_comes_between_the_answer_of_a_pause_and_the_resume(worker: EngineWorker) -> None:
    worker.add(request_of("long", max_tokens=10_000))
    first_event(worker)
    for _ in range(5):
        worker.pause("keep").result(5)
        before = list(iter(lambda: worker.receive(0.01), []))
        assert worker.receive(0.05) == [], before
        worker.resume().result(5)
        assert isinstance(first_event(worker), TokenEvent)


def test_a_request_can_be_cancelled_and_added_while_the_engine_is_paused(worker: EngineWorker) -> None:
    worker.add(request_of("a", max_tokens=10_000))
    first_event(worker)
    worker.pause("retract").result(5)
    worker.add(request_of("b"))
    worker.cancel("a")
    assert receive_finals(worker, 1)["a"].finish_reason == "cancelled"
    worker.resume().result(5)
    assert receive_finals(worker, 1)["b"].finish_reason == "length"


def test_calls_under_load_are_answered_in_order_and_requests_go_on(worker: EngineWorker, tmp_path: Path) -> None:
    for i in range(5):
        worker.add(request_of(str(i), max_tokens=200))
    updates = [worker.update_weights(tmp_path, version) for version in range(1, 20)]
    failing = worker.update_weights(tmp_path / "absent", 99)
    checks = [worker.check() for _ in range(20)]
    assert [update.result(5) for update in updates] == [str(version) for version in range(1, 20)]
    with pytest.raises(CheckpointError, match="no checkpoint"):
        failing.result(5)
    for check in checks:
        check.result(5)
    finals = receive_finals(worker, 5)
    assert {final.finish_reason for final in finals.values()} == {"length"}


def test_a_broken_law_is_an_error_that_names_it() -> None:
    engine = FakeEngine()
    engine.pages.add("nobody's")
    worker = EngineWorker(engine)
    worker.start()
    with pytest.raises(EngineError, match="AssertionError.*nobody's"):
        worker.check().result(5)
    worker.close()


def test_closing_answers_what_is_live_and_refuses_what_comes_later() -> None:
    worker = EngineWorker(FakeEngine(step_s=0.001))
    worker.start()
    for i in range(4):
        worker.add(request_of(str(i), max_tokens=10_000))
    first_event(worker)
    worker.close()
    assert worker.state == "closed"
    assert {final.finish_reason for final in receive_finals(worker, 4).values()} == {"error"}
    with pytest.raises(RequestError, match="close"):
        worker.add(request_of("late"))
    with pytest.raises(EngineError, match="closed"):
        worker.flush().result(5)
    worker.close()


def test_a_loop_that_breaks_down_answers_what_it_owes() -> None:
    class Breaking(FakeEngine):
        def has_work(self) -> bool:
            if self.live:
                raise MemoryError("no more")
            return False

    worker = EngineWorker(Breaking())
    worker.start()
    worker.add(request_of("a"))
    final: FinalOutput = receive_finals(worker, 1)["a"]
    assert "MemoryError: no more" in (final.error or "")
    assert worker.state == "failed"
    assert not worker.is_alive
    with pytest.raises(EngineError, match="has failed"):
        worker.add(request_of("b"))


def test_a_stalled_step_leaves_stacks_and_state_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = FakeEngine()
    worker = EngineWorker(engine, stall_timeout_s=0.2)
    worker.start()
    worker.add(request_of("hangs", prompt=(HANGS,)))
    assert until(lambda: any("1 live" in file.read_text() for file in tmp_path.iterdir()), 5)
    assert worker.state == "stalled"
    [file] = tmp_path.iterdir()
    assert "in _suffer" in file.read_text()
    worker.close(timeout_s=0.1)
    assert receive_finals(worker, 1)["hangs"].error == "the engine was closed"
    engine.is_released = True
