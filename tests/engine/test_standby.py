"""A process that stands by takes a dead engine's place at once, and is no trouble where it cannot."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benthic.engine.factory import BuiltEngine
from benthic.engine.messages import EngineSpec
from benthic.engine.process import EngineProcess
from benthic.engine.supervisor import RestartPolicy
from benthic.errors import ConfigError
from tests.engine.asking import is_running, receive_finals, request_of, until
from tests.engine.fakes import FACTORY, build_fake, fake_spec

POLICY = RestartPolicy(first_wait_s=0.01, standby_after_s=0.0)
Started = Callable[..., EngineProcess]


def build_shorter(spec: EngineSpec) -> BuiltEngine:
    """An engine whose context is shorter than what clients were promised."""
    built = build_fake(spec)
    return BuiltEngine(built.engine, replace(built.facts, max_model_len=999))


def build_nothing(spec: EngineSpec) -> None:
    """The libraries alone."""


def build_badly(spec: EngineSpec) -> BuiltEngine:
    raise ConfigError("cache_bytes is 7; it must be more")


@pytest.fixture
def started() -> Iterator[Started]:
    engines: list[EngineProcess] = []

    def start(ahead: str | None, **options: Any) -> EngineProcess:
        engine = EngineProcess(fake_spec(ahead=ahead, **options), restarts=POLICY)
        engines.append(engine)
        engine.start()
        engine.wait_ready(60)
        return engine

    yield start
    for engine in engines:
        pids = (engine.pid, engine.standby_pid)
        engine.close()
        assert engine.standby_pid is None
        assert not any(pid is not None and is_running(pid) for pid in pids)


def kill(engine: EngineProcess) -> None:
    before, deaths = engine.pid, engine.num_restarts
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert until(lambda: engine.num_restarts > deaths and engine.state == "running")


def test_the_one_that_stands_by_takes_over_with_weights_and_pause_and_another_stands_by(
    started: Started, tmp_path: Path
) -> None:
    engine = started(FACTORY)
    weights = tmp_path / "weights"
    weights.write_text("newer")
    assert engine.update_weights(weights, version=3).result(20) == "3"
    engine.pause("keep").result(20)
    assert until(lambda: engine.standby_pid is not None)
    for _ in range(2):
        waiting = engine.standby_pid
        kill(engine)
        assert engine.pid == waiting
        text = engine.dump().result(20)
        assert "paused keep" in text
        assert "weights newer" in text
        assert until(lambda waiting=waiting: engine.standby_pid not in (None, waiting))
    engine.resume().result(20)
    engine.add(request_of("a"))
    assert receive_finals(engine, 1)["a"].token_ids == (0, 1, 2, 3)


def test_without_one_that_stands_by_a_new_one_is_made(started: Started) -> None:
    engine = started(None)
    kill(engine)
    assert engine.standby_pid is None
    engine.add(request_of("a"))
    assert receive_finals(engine, 1)["a"].finish_reason == "length"


@pytest.mark.parametrize("function", ["build_nothing", "build_badly", "build_shorter"])
def test_one_that_has_no_engine_or_too_small_a_one_builds_it_when_it_starts(started: Started, function: str) -> None:
    engine = started(f"{__name__}:{function}")
    assert until(lambda: engine.standby_pid is not None)
    waiting = engine.standby_pid
    kill(engine)
    assert engine.pid == waiting
    assert engine.wait_ready().max_model_len == 1000
    engine.add(request_of("a"))
    assert receive_finals(engine, 1)["a"].finish_reason == "length"


def test_one_that_died_while_it_stood_by_is_not_taken(started: Started) -> None:
    engine = started(FACTORY)
    assert until(lambda: engine.standby_pid is not None)
    waiting = engine.standby_pid
    assert waiting is not None
    os.kill(waiting, signal.SIGKILL)
    kill(engine)
    assert engine.pid != waiting
    engine.add(request_of("a"))
    assert receive_finals(engine, 1)["a"].finish_reason == "length"


def test_one_that_dies_while_it_stands_by_is_buried_and_disturbs_nobody(started: Started) -> None:
    engine = started(FACTORY)
    assert until(lambda: engine.standby_pid is not None)
    waiting = engine.standby_pid
    assert waiting is not None
    os.kill(waiting, signal.SIGKILL)
    assert until(lambda: engine.standby_pid is None)
    engine.add(request_of("a"))
    assert receive_finals(engine, 1)["a"].finish_reason == "length"
    assert engine.num_restarts == 0
