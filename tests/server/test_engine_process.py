"""A server whose engine lives in a process of its own: the process may die, the server does not."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from benthic.engine.process import EngineProcess
from benthic.engine.supervisor import RestartPolicy
from benthic.server.build import build_service
from benthic.server.config import ServerConfig
from tests.engine.asking import is_running
from tests.engine.fakes import HANGS, fake_spec
from tests.server.conftest import TINY, Live

pytestmark = pytest.mark.anyio
TEXT = {"model": "tiny", "prompt": [5, 6], "max_tokens": 3}
ENDLESS = {**TEXT, "max_tokens": 900}


@pytest.fixture
def up() -> Iterator[Live]:
    engine = EngineProcess(fake_spec(step_s=0.01), restarts=RestartPolicy(first_wait_s=0.2))
    engine.start()
    config = ServerConfig(admin_key="boss", drain_s=30)
    service = build_service(engine, engine.wait_ready(60), TINY, name="tiny", config=config)
    with Live(service, engine) as live:
        yield live
    assert engine.state == "closed"
    assert engine.pid is None


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


async def test_a_killed_engine_costs_every_client_an_error_and_nobody_the_server(up: Any) -> None:
    streams = [up.client.post("/v1/completions", json={**ENDLESS, "stream": True}) for _ in range(8)]
    plain = [up.client.post("/v1/completions", json=ENDLESS) for _ in range(8)]
    tasks = [asyncio.ensure_future(task) for task in streams + plain]
    assert await until(lambda: up.service.channel.num_open == 16)
    os.kill(up.engine.pid, signal.SIGKILL)
    answers = await asyncio.gather(*tasks)
    for answer in answers[:8]:
        assert answer.text.count('"error":{') == 1
        assert "was killed by SIGKILL" in answer.text
        assert "[DONE]" not in answer.text
    assert {answer.status_code for answer in answers[8:]} == {503}
    health = await up.client.get("/health")
    assert (health.status_code, health.json()) == (503, {"status": "restarting"})
    assert int(health.headers["retry-after"]) >= 1
    dump = await up.client.get("/dump_state", headers={"authorization": "Bearer boss"})
    assert dump.status_code == 503
    assert (await up.client.post("/v1/completions", json=TEXT)).status_code == 200
    assert (await up.client.get("/health")).status_code == 200
    assert up.service.channel.num_open == 0
    assert up.engine.num_restarts == 1


async def test_a_request_that_the_engine_is_not_there_for_in_time_is_answered_504() -> None:
    spec = fake_spec()
    spec = replace(spec, engine=replace(spec.engine, request_timeout_s=0.3))
    engine = EngineProcess(spec, restarts=RestartPolicy(first_wait_s=5.0))
    engine.start()
    service = build_service(engine, engine.wait_ready(60), TINY, name="tiny", config=ServerConfig())
    with Live(service, engine) as live:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        assert await until(lambda: engine.state == "restarting")
        began = time.monotonic()
        answer = await live.client.post("/v1/completions", json=TEXT)
        assert time.monotonic() - began < 2.0
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "request_timeout")


async def test_a_client_that_leaves_while_the_engine_restarts_is_forgotten(up: Any) -> None:
    os.kill(up.engine.pid, signal.SIGKILL)
    assert await until(lambda: up.engine.state == "restarting")
    task = asyncio.ensure_future(up.client.post("/v1/completions", json=ENDLESS))
    assert await until(lambda: up.service.channel.num_open == 1)
    task.cancel()
    assert await until(lambda: up.service.channel.num_open == 0)
    assert (await up.client.post("/v1/completions", json=TEXT)).status_code == 200
    assert await until(lambda: up.engine.stats.num_running == 0)


async def test_a_second_stop_signal_does_not_wait_for_a_step_that_never_ends(up: Any) -> None:
    pid = up.engine.pid
    task = asyncio.ensure_future(up.client.post("/v1/completions", json={**TEXT, "prompt": [HANGS]}))
    assert await until(lambda: up.service.channel.num_open == 1)
    await asyncio.sleep(0.1)
    began = time.monotonic()
    up.server.stop()
    up.server.stop()
    assert (await task).status_code == 503
    assert await until(lambda: not up.thread.is_alive(), 10)
    assert time.monotonic() - began < 5
    assert not is_running(pid)


async def test_an_engine_given_up_makes_the_server_say_so(tmp_path: Any) -> None:
    trap = tmp_path / "trap"
    policy = RestartPolicy(first_wait_s=0.01, max_early_deaths=2)
    engine = EngineProcess(fake_spec(fails_at_start=str(trap)), restarts=policy)
    engine.start()
    service = build_service(engine, engine.wait_ready(60), TINY, name="tiny", config=ServerConfig())
    with Live(service, engine) as up:
        trap.touch()
        os.kill(engine.pid or 0, signal.SIGKILL)
        assert await until(lambda: engine.state == "failed")
        health = await up.client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "failed"})
        assert (await up.client.post("/v1/completions", json=TEXT)).status_code == 503
        assert (await up.client.get("/metrics")).status_code == 200
