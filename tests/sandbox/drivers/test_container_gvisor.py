"""Containers under gVisor: what its own kernel changes; all else is asked by tests/sandbox/conformance and security."""

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benthic.errors import SandboxError
from benthic.sandbox.drivers.container import ContainerDriver
from benthic.sandbox.drivers.container_machine import ContainerMachine
from benthic.sandbox.errors import NotSupported
from benthic.sandbox.images import Store
from benthic.sandbox.records import MIB, Command, Limits, Network, Reason, Result, SandboxSpec
from benthic.sandbox.starting import attached
from tests.sandbox.kinds import require_driver

SMALL = SandboxSpec(kind="container", limits=Limits(memory_bytes=64 * MIB, disk_bytes=16 * MIB, num_processes=16))
Scene = Callable[[ContainerMachine, Callable[[str], Awaitable[Result]]], Awaitable[None]]


@pytest.fixture
def driver(tmp_path: Path) -> ContainerDriver:
    require_driver("gvisor")
    (tmp_path / "homes").mkdir()
    return ContainerDriver(tmp_path, Store(tmp_path / "store"), runtime="gvisor")


def play(driver: ContainerDriver, scene: Scene) -> None:
    async def use() -> None:
        home = driver.root / "homes" / secrets.token_hex(6)
        home.mkdir()
        machine = await driver.start(SMALL, home)
        try:
            guest = await attached(machine)
            await guest.configure(replace(machine.setup, cwd="/work"))

            async def shell(text: str) -> Result:
                return await guest.run(secrets.token_hex(4), Command(shell=text, timeout_s=8))

            await scene(machine, shell)
            await guest.close()
        finally:
            await machine.destroy()
        shutil.rmtree(home)
        assert await driver.reconcile([]) == []

    asyncio.run(asyncio.wait_for(use(), 100))


async def reason_of(machine: ContainerMachine) -> Reason | None:
    for _ in range(100):
        if (death := await machine.death()) is not None:
            return death[0]
        await asyncio.sleep(0.1)
    return None


@pytest.mark.nightly
def test_its_kernel_is_not_the_hosts_and_its_socket_is_out_of_reach(driver: ContainerDriver) -> None:
    async def scene(machine: ContainerMachine, shell: Callable[[str], Awaitable[Result]]) -> None:
        assert (await shell("uname -r")).text == "4.4.0\n"
        assert (await shell("ls /dev/control; ls /dev/control/init.sock")).text == ""
        assert list((machine.home / "control").iterdir()) == []

    play(driver, scene)


@pytest.mark.nightly
def test_a_time_out_ends_what_has_left_its_command(driver: ContainerDriver) -> None:
    async def scene(machine: ContainerMachine, shell: Callable[[str], Awaitable[Result]]) -> None:
        ended = await shell("(setsid sleep 1001 >/dev/null 2>&1 &); exec sleep 1000")
        assert ended.reason is Reason.TIMEOUT
        assert "sleep" not in (await shell("cat /proc/[0-9]*/comm")).text

    play(driver, scene)


@pytest.mark.nightly
def test_without_memory_it_ends_and_says_why(driver: ContainerDriver) -> None:
    async def scene(machine: ContainerMachine, shell: Callable[[str], Awaitable[Result]]) -> None:
        with pytest.raises(SandboxError):
            await shell("x=a; while :; do x=$x$x; done")
        assert await reason_of(machine) is Reason.OUT_OF_MEMORY

    play(driver, scene)


@pytest.mark.nightly
def test_without_threads_for_its_kernel_it_ends_and_says_why(driver: ContainerDriver) -> None:
    async def scene(machine: ContainerMachine, shell: Callable[[str], Awaitable[Result]]) -> None:
        refused = await shell("for i in $(seq 20); do sleep 1 & done; wait")
        assert b"can't fork" in refused.stderr  # its kernel keeps the number of processes
        for folder in machine.group.folders():
            if (limit := folder / "pids.max").exists():
                limit.write_text("1")
        with pytest.raises(SandboxError):
            await shell("for i in $(seq 10); do sleep 5 & done; wait")
        assert await reason_of(machine) is Reason.OUT_OF_PROCESSES

    play(driver, scene)


def test_a_network_is_refused_in_words(driver: ContainerDriver) -> None:
    home = driver.root / "homes" / "one"
    home.mkdir()
    spec = replace(SMALL, network=Network.allow("example.org:443"))
    with pytest.raises(NotSupported, match="gvisor containers have no network"):
        asyncio.run(driver.start(spec, home))
