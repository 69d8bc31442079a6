"""Several hosts, each in a network namespace of its own, with real agents: cut off, killed, and taken over."""

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.errors import SandboxDied
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.fleet.launch import fleet_token
from benthic.sandbox.host import Request
from benthic.sandbox.records import SandboxSpec, State
from benthic.sandbox.wire import unpack_result
from tests.sandbox.fleet.part import Part, sweep

NAMES = ("h1", "h2")
PORT = 7751

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="no `ip`: apt-get install iproute2"),
    pytest.mark.timeout(280),
]


class Net:
    """One network namespace, and the link to it. Its address ends in .2, this side's in .1."""

    def __init__(self, index: int) -> None:
        mark = f"{os.getpid() % 100_000:05d}{index}"
        self.space, self.outer, self.inner = f"bxf{mark}", f"bxo{mark}", f"bxi{mark}"
        self.prefix = f"10.{201 + index}.{os.getpid() % 250}"

    def make(self) -> None:
        ip("netns", "add", self.space)
        ip("link", "add", self.outer, "type", "veth", "peer", "name", self.inner, "netns", self.space)
        ip("addr", "add", f"{self.prefix}.1/24", "dev", self.outer)
        ip("-n", self.space, "addr", "add", f"{self.prefix}.2/24", "dev", self.inner)
        ip("-n", self.space, "link", "set", "lo", "up")
        ip("-n", self.space, "link", "set", self.inner, "up")
        self.join()

    def cut(self) -> None:
        ip("link", "set", self.outer, "down")

    def join(self) -> None:
        ip("link", "set", self.outer, "up")

    def remove(self) -> None:
        subprocess.run(["ip", "link", "del", self.outer], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "netns", "del", self.space], check=False, stderr=subprocess.DEVNULL)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Fleet:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.nets = {name: Net(index) for index, name in enumerate(NAMES)}
        gateway = f"http://0.0.0.0:{PORT}"
        self.gateway = Part(root, "gateway", gateway, "1.5")
        self.agents = {name: self.agent(name) for name in NAMES}

    def agent(self, name: str) -> Part:
        net = self.nets[name]
        return Part(
            self.root,
            *("agent", name, f"http://{net.prefix}.2:{PORT}", f"http://{net.prefix}.1:{PORT}", str(self.root / "logs")),
            prefix=["nsenter", f"--net=/run/netns/{net.space}", "--"],
        )

    def client(self, **options: Any) -> RemoteHost:
        token = fleet_token(self.root / "token")
        return RemoteHost(f"http://127.0.0.1:{PORT}", token=token, patience_s=60.0, **options)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    fleet_token(tmp_path / "token")
    try:
        for net in fleet.nets.values():
            net.make()
        for part in (fleet.gateway, *fleet.agents.values()):
            part.start()
        yield fleet
    finally:
        for part in (fleet.gateway, *fleet.agents.values()):
            part.kill()
        for net in fleet.nets.values():
            net.remove()
        for name in NAMES:
            sweep(tmp_path / name, tmp_path / "logs")


def play(scene: Callable[[RemoteHost], Coroutine[Any, Any, None]], client: RemoteHost) -> None:
    async def whole() -> None:
        async with client:
            await scene(client)

    asyncio.run(whole())


def count(text: str) -> Request:
    return Request(verb="exec", arguments={"shell": f"echo {text} >> counter; cat counter"})


async def said(client: RemoteHost, sandbox_id: str, seq: int) -> str:
    answer = await client.call(sandbox_id, seq, count(str(seq)))
    assert answer.error is None, answer
    return unpack_result(answer.value, answer.data).text.replace("\n", "")


async def host_of(client: RemoteHost, fleet: Fleet, sandbox_id: str) -> str:
    return next(name for name in NAMES if (fleet.root / name / "homes" / sandbox_id).exists())


async def spread(client: RemoteHost, fleet: Fleet) -> dict[str, str]:
    """A sandbox on each host, by host."""
    async with asyncio.timeout(60):
        while len({host["name"] for host in await client.connection.json("GET", "/hosts")}) < len(NAMES):
            await asyncio.sleep(0.1)
    found: dict[str, str] = {}
    while len(found) < len(NAMES):
        info = await client.create(SandboxSpec(kind="container", ttl_s=None, cwd=str(fleet.root / "work")))
        found.setdefault(await host_of(client, fleet, info.id), info.id)
    return found


def test_a_host_that_is_cut_off_keeps_its_sandboxes_and_goes_on_when_it_is_back(fleet: Fleet) -> None:
    async def scene(client: RemoteHost) -> None:
        ids = await spread(client, fleet)
        assert await said(client, ids["h1"], 0) == "0"
        fleet.nets["h1"].cut()
        waiting = asyncio.create_task(said(client, ids["h1"], 1))
        assert await said(client, ids["h2"], 0) == "0"
        await asyncio.sleep(4.0)  # lost by now; it holds its log, so the other host must leave it alone
        assert not waiting.done()
        fleet.nets["h1"].join()
        assert await waiting == "01"
        assert await host_of(client, fleet, ids["h1"]) == "h1"
        assert (await client.info(ids["h1"])).state is State.RUNNING

    play(scene, fleet.client(rebuild=True))


def test_what_was_given_up_while_its_host_was_cut_off_is_closed_there_and_ran_once(fleet: Fleet) -> None:
    async def scene(client: RemoteHost) -> None:
        ids = await spread(client, fleet)
        trace = fleet.root / "trace"
        slow = Request(verb="exec", arguments={"shell": f"echo began >> {trace}; sleep 3; echo ended >> {trace}"})
        running = asyncio.create_task(client.call(ids["h1"], 0, slow))
        async with asyncio.timeout(30):
            while not trace.exists():
                await asyncio.sleep(0.05)
        fleet.nets["h1"].cut()
        with pytest.raises(SandboxDied, match="host_lost"):
            await running
        with pytest.raises(SandboxDied, match="host_lost"):
            await client.call(ids["h1"], 0, slow)
        again = await client.create(SandboxSpec(kind="container", ttl_s=None, cwd=str(fleet.root / "work")))
        assert await host_of(client, fleet, again.id) == "h2"
        assert (fleet.root / "h1" / "homes" / ids["h1"]).exists()  # nobody there knows yet
        fleet.nets["h1"].join()
        end = time.monotonic() + 60
        while any((fleet.root / "h1" / "homes").iterdir()):
            assert time.monotonic() < end, "what was given up still lives on its host"
            await asyncio.sleep(0.1)
        assert trace.read_text().split().count("began") == 1
        assert {info.id for info in await client.sandboxes()} == {ids["h2"], again.id}

    play(scene, fleet.client())


def test_a_host_that_dies_is_lost_and_a_sandbox_that_may_be_rebuilt_goes_on_elsewhere(fleet: Fleet) -> None:
    async def scene(client: RemoteHost) -> None:
        ids = await spread(client, fleet)
        async with fleet.client() as plain:
            while True:
                mortal = await plain.create(SandboxSpec(kind="container", ttl_s=None, cwd=str(fleet.root / "work")))
                if await host_of(plain, fleet, mortal.id) == "h1":
                    break
            assert [await said(client, ids["h1"], seq) for seq in range(3)] == ["0", "01", "012"]
            fleet.agents["h1"].kill()
            with pytest.raises(SandboxDied, match="host_lost"):
                await said(plain, mortal.id, 0)
        assert await said(client, ids["h1"], 3) == "0123"
        assert (fleet.root / "h2" / "homes" / ids["h1"]).exists()
        assert await said(client, ids["h1"], 1) == "01"
        fleet.agents["h1"].start()
        end = time.monotonic() + 60
        while any((fleet.root / "h1" / "homes").iterdir()):
            assert time.monotonic() < end, "what was left on the old host is still there"
            await asyncio.sleep(0.1)
        assert await said(client, ids["h1"], 4) == "01234"

    play(scene, fleet.client(rebuild=True))
