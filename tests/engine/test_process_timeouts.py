"""A request's time counts from its arrival, whether there is an engine or not."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.messages import Start
from benthic.engine.process import EngineProcess
from benthic.engine.request import FinalOutput
from benthic.engine.supervisor import ChildProcess, RestartPolicy
from benthic.errors import RequestError
from benthic.models.transformer import Transformer
from tests.engine.asking import first_event, held, receive_finals, request_of, until
from tests.engine.fakes import fake_spec

SLOW = RestartPolicy(first_wait_s=3.0, max_wait_s=3.0, early_s=100.0)
QUICK = RestartPolicy(first_wait_s=0.01, early_s=0.0)


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    engine = EngineProcess(fake_spec(step_s=0.002), restarts=QUICK)
    engine.start()
    engine.wait_ready(60)
    yield engine
    engine.close()


def stop(engine: EngineProcess, how: signal.Signals) -> int:
    assert engine.pid is not None
    os.kill(engine.pid, how)
    return engine.pid


def check_timeout(final: FinalOutput, began: float, limit_s: float) -> None:
    assert (final.finish_reason, final.error_kind) == ("error", "timeout"), final
    assert "timed out after" in (final.error or "")
    assert limit_s <= time.monotonic() - began < limit_s + 1.5


def test_a_request_that_comes_while_the_engine_restarts_times_out_at_its_own_time() -> None:
    engine = EngineProcess(fake_spec(), restarts=SLOW)
    engine.start()
    engine.wait_ready(60)
    stop(engine, signal.SIGKILL)
    assert until(lambda: engine.state == "restarting")
    began = time.monotonic()
    engine.add(request_of("late", timeout_s=0.3))
    engine.add(request_of("patient", timeout_s=60.0))
    final = receive_finals(engine, 1)["late"]
    check_timeout(final, began, 0.3)
    assert "the engine is restarting" in (final.error or "")
    assert receive_finals(engine, 1)["patient"].finish_reason == "length"
    engine.close()


def test_a_request_that_comes_before_the_engine_is_loaded_times_out_at_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_start = threading.Event()

    def made_late(start: Start) -> ChildProcess:
        assert may_start.wait(20)
        return ChildProcess(start)

    monkeypatch.setattr("benthic.engine.process.ChildProcess", made_late)
    engine = EngineProcess(fake_spec())
    began = time.monotonic()
    engine.add(request_of("early", timeout_s=0.2))
    engine.start()
    final = receive_finals(engine, 1)["early"]
    check_timeout(final, began, 0.2)
    assert "the engine is starting" in (final.error or "")
    may_start.set()
    engine.close()


@pytest.mark.parametrize("is_default", [False, True], ids=["own", "default"])
def test_requests_of_a_stopped_child_time_out_with_what_they_have(is_default: bool) -> None:
    spec = fake_spec(step_s=0.002)
    if is_default:
        spec = replace(spec, engine=replace(spec.engine, request_timeout_s=0.5))
    engine = EngineProcess(spec, restarts=QUICK)
    engine.start()
    engine.wait_ready(60)
    began = time.monotonic()
    engine.add(request_of("stopped", max_tokens=10_000, timeout_s=None if is_default else 0.5))
    first_event(engine)
    pid = stop(engine, signal.SIGSTOP)
    final = receive_finals(engine, 1)["stopped"]
    check_timeout(final, began, 0.5)
    assert final.token_ids and final.token_ids == tuple(range(len(final.token_ids)))
    os.kill(pid, signal.SIGCONT)
    assert until(lambda: engine.stats.num_running == 0 and engine.stats.num_finished == 1)
    engine.close()


def test_an_id_is_in_use_until_the_child_has_let_go_of_it(engine: EngineProcess) -> None:
    """Else the end of the old request would be taken for that of the new one."""
    pid = stop(engine, signal.SIGSTOP)
    engine.add(request_of("a", max_tokens=10_000, timeout_s=0.1))
    assert receive_finals(engine, 1)["a"].error_kind == "timeout"
    with pytest.raises(RequestError, match="in use"):
        engine.add(request_of("a"))
    os.kill(pid, signal.SIGCONT)
    assert until(lambda: engine.stats.num_finished == 1)
    engine.add(request_of("a"))
    assert receive_finals(engine, 1)["a"].token_ids == (0, 1, 2, 3)
    assert engine.receive(0.2) == []


def test_what_was_waited_for_the_engine_counts_when_it_is_there(small_model: Transformer) -> None:
    now_s = [100.0]
    engine = Engine(small_model, EngineConfig(cache_bytes=1 << 26), clock=lambda: now_s[0])
    request = request_of("a", timeout_s=5.0, max_tokens=200)
    engine.add(replace(request, waited_s=4.0))
    assert not any(isinstance(event, FinalOutput) for event in engine.step())
    now_s[0] += 1.5
    [final] = [event for event in engine.step() if isinstance(event, FinalOutput)]
    assert final.error_kind == "timeout"
    assert "after 5.5 s" in (final.error or "") and "it had 5 s" in (final.error or "")
    assert final.report is not None and final.report.queued_s == 4.0


def test_the_thread_that_keeps_the_time_ends_with_the_engine() -> None:
    before = held()
    engine = EngineProcess(fake_spec())
    engine.start()
    engine.close()
    assert held() == before
