"""Whatever a client sends, the answer is a 200 or a refusal, and the next request is served."""

import asyncio
import os
import random
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from benchmarks.server.outside import serving
from benthic.server.config import ServerConfig
from benthic.text.tokenizer import EOS
from tests.server.good_bodies import BODIES
from tests.server.mutations import mutated
from tests.server.processes import children_of, resident_bytes

pytestmark = pytest.mark.anyio
NUM_SENDERS = 4
NUM_FIRST = 200
LONGEST_S = 60.0
"""No answer may take longer, on a busy machine."""
GROWTH_BYTES = 64 << 20
"""Of all processes, after NUM_FIRST bodies of each endpoint have filled what is filled once: caches, allocators."""


@pytest.mark.parametrize("path", BODIES)
async def test_mutated_requests_are_answered_or_refused_and_never_break_the_server(
    scripted: Any, seed: int, path: str
) -> None:
    rng = random.Random(seed)
    async with scripted("so it is" + EOS) as up:
        outcomes = [await send(up.client, path, mutated(path, rng)) for _ in range(100)]
        assert up.service.channel.num_open == 0
        await send_good(up.client, path)
    assert {200, 400} <= set(outcomes)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
async def test_thousands_of_mutated_requests_leave_the_real_server_as_it_was(seed: int) -> None:
    num_bodies = int(os.environ.get("NUM_BODIES", "2000"))
    async with httpx.AsyncClient(timeout=LONGEST_S) as client:
        with serving("--engine.max_model_len", "512", "--server.standby", "false") as up:
            client.base_url = httpx.URL(up.url)
            for path in BODIES:
                await send_many(client, path, max(NUM_FIRST, num_bodies // 10), seed - 1)
            sizes = [resident(up.pid)]
            for path in BODIES:
                began_at = time.monotonic()
                outcomes, longest_s = await send_many(client, path, num_bodies, seed)
                took_s = time.monotonic() - began_at
                await send_good(client, path)
                sizes.append(resident(up.pid))
                print(
                    f"{path}: {num_bodies} bodies in {took_s:.0f} s, answered {dict(outcomes)}, the slowest in "
                    f"{longest_s:.2f} s; {sizes[-1] / 1e6:.0f} MB resident"
                )
                assert {200, 400} <= set(outcomes)
            assert "benthic_engine_restarts_total 0.0" in (await client.get("/metrics")).text
            loads = (await client.get("/v1/loads")).json()["loads"][0]
            assert (loads["num_open_sequences"], loads["num_running_reqs"], loads["num_used_tokens"]) == (0, 0, 0)
    print(f"from {sizes[0] / 1e6:.0f} to {sizes[-1] / 1e6:.0f} MB resident")
    assert sizes[-1] - sizes[0] < GROWTH_BYTES


async def send_many(client: httpx.AsyncClient, path: str, count: int, seed: int) -> tuple[Counter[int], float]:
    """How often each status came, and how long the slowest answer took; several senders at a time."""
    rng = random.Random(seed)
    bodies = [mutated(path, rng) for _ in range(count)]
    outcomes: Counter[int] = Counter()
    longest_s = 0.0

    async def sender() -> None:
        nonlocal longest_s
        while bodies:
            raw = bodies.pop()
            began_at = time.monotonic()
            outcomes[await send(client, path, raw)] += 1
            longest_s = max(longest_s, time.monotonic() - began_at)

    await asyncio.gather(*(sender() for _ in range(NUM_SENDERS)))
    return outcomes, longest_s


async def send(client: httpx.AsyncClient, path: str, raw: bytes) -> int:
    """The status of an answer that is as it must be."""
    response = await client.post(path, content=raw, headers={"content-type": "application/json"})
    allowed = (200, 400, 404) if len(raw) <= ServerConfig().max_body_bytes else (413,)
    assert response.status_code in allowed, f"{response.status_code} for {raw[:2000]!r}: {response.text}"
    if response.status_code != 200:
        assert {"message", "type", "param", "code"} == set(response.json()["error"])
        assert ("request_id" in response.json()) is ("messages" in path)
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert BODIES[path][1] in response.text.rstrip().rpartition("\n\n")[2], f"a stream broke off: {raw[:2000]!r}"
    return response.status_code


async def send_good(client: httpx.AsyncClient, path: str) -> None:
    """The endpoint still answers what is right."""
    quiet = {name: value for name, value in BODIES[path][0].items() if name not in ("stream", "stream_options")}
    assert (await client.post(path, json=quiet)).status_code == 200


def resident(pid: int) -> int:
    """Resident memory of the server, its engine and what compiles grammars."""
    return sum(resident_bytes(process) for process in (pid, *children_of(pid, "")))
