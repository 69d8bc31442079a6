"""A client leaves a real engine in every phase of its request: within a step nothing of it is there any more."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.models.transformer import Transformer
from benthic.server.config import ServerConfig
from tests.server.conftest import CONTEXT_LEN, Live, build

pytestmark = pytest.mark.anyio
TEXT = {"model": "tiny", "ignore_eos": True}
STEP_S = 0.03
"""Each step is made to take so long, so that a phase lasts."""
LONG = {**TEXT, "prompt": [7] * 12, "max_tokens": 400}


@pytest.fixture
def up(model: Transformer) -> Iterator[Live]:
    config = EngineConfig(
        max_num_seqs=2, max_batched_tokens=16, prefill_chunk=8, max_model_len=CONTEXT_LEN, debug_checks=True
    )
    engine = Engine(model, config)
    step = engine.step

    def slow_step() -> Any:
        time.sleep(STEP_S)
        return step()

    engine.step = slow_step  # type: ignore[method-assign]
    with Live(build(engine, ServerConfig()), engine) as live:
        yield live


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


def held(up: Live) -> tuple[int, int, int, int]:
    stats = up.engine.stats()
    return stats.num_running, stats.num_waiting, stats.used_pages, stats.used_windows


async def gone(up: Live, *tasks: "asyncio.Task[Any]") -> None:
    """Leaves, and asserts that a few steps later nothing is held; then that the engine is sound and serves."""
    for task in tasks:
        task.cancel()
    assert await until(lambda: up.service.channel.num_open == 0, 2)
    before = up.engine.stats().num_steps
    assert await until(lambda: held(up) == (0, 0, 0, 0), 5), held(up)
    assert up.engine.stats().num_steps - before <= 2
    up.service.channel.engine.check().result(20)
    answer = await up.client.post("/v1/completions", json={**TEXT, "prompt": [5], "max_tokens": 1})
    assert answer.status_code == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_a_long_prompt_is_computed(up: Live, stream: bool) -> None:
    body = {**TEXT, "prompt": [7] * 400, "max_tokens": 5, "n": 2, "stream": stream}
    task = asyncio.ensure_future(up.client.post("/v1/completions", json=body))
    assert await until(lambda: up.engine.stats().num_running > 0 and up.engine.stats().num_steps >= 2)
    await gone(up, task)


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_others_run_and_this_one_waits(up: Live, stream: bool) -> None:
    running = [asyncio.ensure_future(up.client.post("/v1/completions", json=LONG)) for _ in range(2)]
    assert await until(lambda: up.engine.stats().num_running == 2)
    waiting = asyncio.ensure_future(up.client.post("/v1/completions", json={**LONG, "n": 3, "stream": stream}))
    assert await until(lambda: up.engine.stats().num_waiting == 3)
    waiting.cancel()
    assert await until(lambda: up.service.channel.num_open == 2, 2)
    assert await until(lambda: up.engine.stats().num_waiting == 0, 2)
    assert up.engine.stats().num_running == 2
    await gone(up, *running)


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_while_tokens_are_generated(up: Live, stream: bool) -> None:
    task = asyncio.ensure_future(up.client.post("/v1/completions", json={**LONG, "n": 2, "stream": stream}))
    assert await until(lambda: up.service.metrics.generated_tokens._value.get() > 6)
    await gone(up, task)


async def test_leaving_while_prompts_are_scored(up: Live) -> None:
    body = {**TEXT, "prompt": [[7] * 300] * 4, "echo": True, "logprobs": 1, "max_tokens": 1}
    task = asyncio.ensure_future(up.client.post("/v1/completions", json=body))
    assert await until(lambda: up.engine.stats().num_running == 1 and up.engine.stats().num_steps >= 2)
    await gone(up, task)


async def test_leaving_in_a_pause_and_while_the_server_stops(up: Live) -> None:
    task = asyncio.ensure_future(up.client.post("/v1/completions", json=LONG))
    assert await until(lambda: up.engine.stats().num_running == 1)
    up.service.channel.engine.pause("keep").result(20)
    task.cancel()
    assert await until(lambda: up.service.channel.num_open == 0, 2)
    assert await until(lambda: held(up) == (0, 0, 0, 0), 5), held(up)
    up.service.channel.engine.resume().result(20)
    late = asyncio.ensure_future(up.client.post("/v1/completions", json={**LONG, "stream": True}))
    assert await until(lambda: up.engine.stats().num_running == 1)
    began = time.monotonic()
    up.server.stop()
    late.cancel()
    assert await until(lambda: not up.thread.is_alive())
    assert time.monotonic() - began < 5
