"""Agents and gateways that are asked to end do so in order, and agents clear garbage by themselves."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from benthic.sandbox import Sandbox
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.fleet.config import AgentConfig
from benthic.sandbox.fleet.launch import fleet_token, run_agent
from benthic.sandbox.folders import Folders
from benthic.sandbox.trajectory import BlobStore
from tests.sandbox.bare_driver import BareDriver
from tests.sandbox.fleet.part import Part, sweep
from tests.sandbox.fleet.processes import gateway_url

SIGNALS = [signal.SIGTERM, signal.SIGINT]


def ended(part: Part, number: int) -> int:
    assert part.process is not None
    part.process.send_signal(number)
    return part.process.wait(20)


async def until_it_answers(host: RemoteHost) -> None:
    async with asyncio.timeout(30):
        await host.sandboxes()


@pytest.mark.parametrize("number", SIGNALS)
def test_an_agent_lets_its_sandboxes_go_and_the_next_one_has_them(tmp_path: Path, number: int) -> None:
    listen = f"unix:{tmp_path}/h1.sock"
    token = fleet_token(tmp_path / "token")
    agent = Part(tmp_path, "agent", "h1", listen, "")
    agent.start()

    async def make() -> str:
        async with RemoteHost(listen, token=token) as host:
            return (await Sandbox.create(kind="container", host=host)).id

    async def use(sandbox_id: str) -> str:
        async with RemoteHost(listen, token=token) as host:
            return (await (await Sandbox.attach(sandbox_id, host=host)).exec("echo alive")).text

    try:
        sandbox_id = asyncio.run(make())
        time.sleep(1.0)
        assert ended(agent, number) == 0
        record = Folders(tmp_path / "h1").load(sandbox_id)
        assert record is not None and record.lived_s > 0.9, "it was written down when the agent left"
        agent.start()
        assert asyncio.run(use(sandbox_id)) == "alive\n"
        assert ended(agent, number) == 0
    finally:
        agent.kill()
        sweep(tmp_path / "h1")
    assert b"Traceback" not in agent.log.read_bytes()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_gateway_ends_with_status_0(tmp_path: Path, number: int) -> None:
    token = fleet_token(tmp_path / "token")
    gateway = Part(tmp_path, "gateway", gateway_url(tmp_path), "60")
    gateway.start()

    async def ask() -> None:
        async with RemoteHost(gateway_url(tmp_path), token=token) as host:
            await until_it_answers(host)

    try:
        asyncio.run(ask())
        assert ended(gateway, number) == 0
    finally:
        gateway.kill()
    assert b"Traceback" not in gateway.log.read_bytes()


def test_an_agent_clears_what_nothing_needs(tmp_path: Path) -> None:
    folders = Folders(tmp_path)
    folders.create()
    blobs = BlobStore(folders.blobs)
    old, young = (blobs.put(os.urandom(1 << 16)) for _ in range(2))
    long_ago = time.time() - 3600
    os.utime(blobs._path(old), (long_ago, long_ago))
    config = AgentConfig(listen=f"unix:{tmp_path}/agent.sock", state_root=tmp_path, clear_every_s=0.05)

    async def run() -> None:
        agent = asyncio.create_task(run_agent(config, [BareDriver(tmp_path)]))
        async with asyncio.timeout(30):
            while blobs._path(old).exists():
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        agent.cancel()
        await asyncio.gather(agent, return_exceptions=True)

    asyncio.run(run())
    assert blobs._path(young).exists()
