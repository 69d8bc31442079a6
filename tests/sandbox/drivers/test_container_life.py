"""Containers through the public handle: forks, pauses, ports, a way out, and an owner that is killed with -9."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox import Network
from benthic.sandbox.errors import CommandTimeout, SandboxDied
from benthic.sandbox.local import LocalHost
from benthic.sandbox.probe import all_drivers
from benthic.sandbox.records import MIB, Limits, Reason
from benthic.sandbox.sandbox import Sandbox
from benthic.sandbox.trajectory import verify
from tests.sandbox.kinds import require_driver

SERVE = "while :; do printf 'HTTP/1.0 200 OK\\r\\n\\r\\nfrom inside' | nc -l -p 8000; done"


def host_at(root: Path, name: str) -> LocalHost:
    return LocalHost(root, [driver for driver in all_drivers(root) if driver.name == name])


@pytest.fixture(params=["crun", pytest.param("docker", marks=pytest.mark.nightly)])
def name(request: pytest.FixtureRequest) -> str:
    require_driver(request.param)
    return str(request.param)


@pytest.fixture
def run(tmp_path: Path, name: str) -> Callable[[Callable[[LocalHost], Coroutine[Any, Any, None]]], None]:
    """Runs a test with a host whose sandboxes are all gone after it."""

    async def whole(body: Callable[[LocalHost], Coroutine[Any, Any, None]]) -> None:
        async with host_at(tmp_path, name) as host:
            try:
                await body(host)
            finally:
                for info in await host.sandboxes():
                    await host.close(info.id)

    return lambda body: asyncio.run(whole(body))


@asynccontextmanager
async def server() -> AsyncIterator[int]:
    """A port of the host's loopback that answers every request."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nfrom outside")
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


def test_forks_begin_with_the_parents_files_and_go_their_own_way(run: Any) -> None:
    async def body(host: LocalHost) -> None:
        async with Sandbox.create(kind="container", host=host) as parent:
            await parent.write("/work/state", b"shared")
            one, two = await parent.fork(2)
            await one.exec("echo one >state")
            assert [await box.read("/work/state") for box in (parent, one, two)] == [b"shared", b"one\n", b"shared"]

    run(body)


def test_a_paused_container_does_nothing_and_goes_on_when_called(run: Any) -> None:
    async def body(host: LocalHost) -> None:
        async with Sandbox.create(kind="container", host=host) as box:
            await box.spawn("while :; do echo >>ticks; sleep 0.02; done")
            await box.exec("while [ ! -s ticks ]; do sleep 0.02; done")
            await box.pause()
            await asyncio.sleep(0.3)
            await box.resume()
            first = (await box.stat("/work/ticks")).size_bytes
            await asyncio.sleep(0.3)
            assert (await box.stat("/work/ticks")).size_bytes > first

    run(body)


def test_a_port_inside_is_reached_by_a_socket_of_the_host(run: Any) -> None:
    async def body(host: LocalHost) -> None:
        async with Sandbox.create(kind="container", host=host) as box:
            await box.spawn(SERVE)
            path = await box.expose(8000)
            for _ in range(100):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                data = await reader.read()
                writer.close()
                if data:
                    break
                await asyncio.sleep(0.05)
            assert data.endswith(b"from inside")

    run(body)


def test_only_listed_destinations_are_reached_and_only_through_the_host(run: Any) -> None:
    async def body(host: LocalHost) -> None:
        async with server() as port, server() as other:
            network = Network.allow(f"127.0.0.1:{port}", "allowed.test:80")
            async with Sandbox.create(kind="container", host=host, network=network) as box:
                proxy = "http_proxy=http://127.0.0.1:3128"
                reached = await box.exec(f"{proxy} wget -q -O - http://127.0.0.1:{port}/")
                assert reached.text == "from outside", reached
                denied = await box.exec(f"{proxy} wget -O - http://127.0.0.1:{other}/")
                assert b"403" in denied.stderr
                assert (await box.exec(f"wget -q -O - http://127.0.0.1:{port}/")).returncode == 1
                assert "127.64.0.1" in (await box.exec("nslookup allowed.test")).text
                assert (await box.exec("nslookup denied.test")).returncode != 0
                assert (await box.exec("ip route; ip -6 route show default")).text == ""

    run(body)


def test_a_way_out_outlives_an_owner_that_lets_go(run: Any, tmp_path: Path, name: str) -> None:
    async def body(host: LocalHost) -> None:
        async with server() as port:
            async with host_at(tmp_path, name) as first:
                network = Network.allow(f"127.0.0.1:{port}")
                box = await Sandbox.create(kind="container", host=first, network=network)
            box = await Sandbox.attach(box.id, host=host)
            fetch = f"http_proxy=http://127.0.0.1:3128 wget -q -O - http://127.0.0.1:{port}/"
            assert (await box.exec(fetch)).text == "from outside"

    run(body)


def test_a_container_without_rules_has_a_loopback_and_nothing_else(run: Any) -> None:
    async def body(host: LocalHost) -> None:
        async with server() as port, Sandbox.create(kind="container", host=host) as box:
            assert (await box.exec("ls /sys/class/net")).text == "lo\n"
            assert (await box.exec(f"wget -q -O - http://127.0.0.1:{port}/")).returncode == 1
            assert (await box.exec("nslookup pypi.org", timeout_s=20)).returncode != 0

    run(body)


def test_a_timeout_ends_a_command_and_a_killed_container_says_why(run: Any) -> None:
    async def body(host: LocalHost) -> None:
        limits = Limits(memory_bytes=64 * MIB)
        async with Sandbox.create(kind="container", host=host, limits=limits) as box:
            with pytest.raises(CommandTimeout):
                await box.exec("trap '' TERM; (sleep 100 &) ; sleep 100", timeout_s=0.5)
            assert (await box.exec("pgrep sleep")).text == ""
            result = await box.exec("head -c 200m /dev/zero | tail")
            assert result.reason is Reason.OUT_OF_MEMORY or result.returncode != 0
            state = json.loads((host.folders.home(box.id) / "state.json").read_text())
            os.kill(state["pid"], signal.SIGKILL)
            with pytest.raises(SandboxDied):
                await box.exec("true")

    run(body)


OWNER = """
import asyncio, sys
from pathlib import Path
from tests.sandbox.drivers.test_container_life import host_at
from benthic.sandbox.sandbox import Sandbox
from benthic.sandbox.trajectory import verify

async def main():
    async with host_at(Path(sys.argv[1]), sys.argv[2]) as host:
        box = await Sandbox.create(kind="container", host=host, ttl_s=None)
        await box.exec("echo once >>count")
        print(box.id, flush=True)
        await box.exec("echo twice >>count; sleep 2; echo end >>count")

asyncio.run(main())
"""


def test_a_container_whose_owner_was_killed_is_taken_over_with_its_running_command(
    run: Any, tmp_path: Path, name: str
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    command = [sys.executable, "-c", OWNER, str(tmp_path), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout is not None
        sandbox_id = owner.stdout.readline().strip()
        state = json.loads((tmp_path / "homes" / sandbox_id / "state.json").read_text())
        count = Path(f"/proc/{state['pid']}/root/work/count")
        while "twice" not in count.read_text():
            pass
        owner.kill()

    async def body(host: LocalHost) -> None:
        box = await Sandbox.create(kind="container", host=host, ttl_s=None, resume=sandbox_id)
        assert (await box.exec("echo once >>count")).is_replayed
        await box.exec("echo twice >>count; sleep 2; echo end >>count")
        assert await box.read("/work/count") == b"once\ntwice\nend\n"
        await box.close()

    run(body)


def test_a_second_run_whose_files_differ_in_silence_is_told_by_their_digest(tmp_path: Path) -> None:
    require_driver("crun")

    async def body() -> None:
        async with host_at(tmp_path, "crun") as host:
            async with Sandbox.create(kind="container", snapshot_every=1, host=host) as box:
                for command in ("echo same >f; rm -rf /usr/bin/id", "head -c 8 /dev/urandom >g", "echo more >>f"):
                    await box.exec(command)
                    for _ in range(100):  # until it was snapshotted, by itself and between two calls
                        if len(host.trajectory(box.id).notes("snapshot")) == box.next_seq:
                            break
                        await asyncio.sleep(0.05)
            report = await verify(host, host.trajectory(box.id))
            states = [(step.seq, step.sameness) for step in report.steps if step.verb == "state"]
            assert states == [(0, "exact"), (1, "different"), (2, "different")]
            different = report.first_difference
            assert different is not None and different.seq == 1 and "digest of the changed files" in different.detail
            garbage = await host.clear_garbage(grace_s=-1)
            assert len(garbage.store.released) == 6, "of two sandboxes that have ended"

    asyncio.run(body())
