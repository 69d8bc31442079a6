"""Clones that are woken ahead of their use: taken over whole, ended when nobody wants them, swept with their keeper."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benthic.sandbox import LocalHost, Sandbox
from benthic.sandbox.drivers.microvm import microvm_driver
from benthic.sandbox.drivers.qemu_process import running
from benthic.sandbox.drivers.warm import WarmDriver
from benthic.sandbox.images import Store
from benthic.sandbox.linux import HomeState, ProcessId, UidPool, root_tag
from benthic.sandbox.records import MIB, Limits, SandboxSpec
from tests.sandbox.kinds import require_kind
from tests.sandbox.leftovers import left

SPEC = SandboxSpec(
    kind="microvm",
    limits=Limits(memory_bytes=96 * MIB, disk_bytes=32 * MIB, num_files=500, num_processes=64),
)
OTHER = replace(SPEC, limits=replace(SPEC.limits, num_files=501))
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="machines under uids of their own need root")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One state root for all, since a template takes seconds to boot."""
    require_kind("microvm")
    folder = tmp_path_factory.mktemp("warm")
    yield folder
    assert left(folder) == []


def warm(root: Path, count: int = 1, *, free: int = 1 << 40) -> WarmDriver:
    return WarmDriver(microvm_driver(root, Store(root / "store")), root, count, free_memory=lambda: free)


async def until_ready(driver: WarmDriver, specs: list[SandboxSpec]) -> None:
    deadline = time.monotonic() + 30
    while sorted(spec.limits.num_files for spec in driver.ready) != [spec.limits.num_files for spec in specs]:
        assert time.monotonic() < deadline, driver.ready
        await asyncio.sleep(0.05)


def test_a_start_takes_over_what_is_ready_and_everything_of_it_is_the_new_sandboxs(root: Path) -> None:
    async def check() -> None:
        driver = warm(root)
        async with LocalHost(root, [driver]) as host:
            first = await Sandbox.create_from(SPEC, host=host)
            await first.write("/work/mine", b"of the first")
            await until_ready(driver, [SPEC])
            (name,) = {name for name, _ in running(root_tag(root))} - {first.id}
            second = await Sandbox.create_from(replace(SPEC, env=(("A", "b"),)), host=host)
            home = host.folders.home(second.id)
            state = HomeState(home).load()
            assert state["name"] == name and not (root / "homes" / name).exists()
            assert UidPool().owners()[state["uid"]] == home.resolve()
            assert (await second.exec("echo $A; ls -A /work /tmp /dev/shm; ps | grep -c '[s]leep'")).text == (
                "b\n/dev/shm:\n\n/tmp:\n\n/work:\n0\n"
            )
            assert (await first.exec("cat /work/mine")).text == "of the first"
            await until_ready(driver, [SPEC])
            assert await host.reconcile() == [], "what is ready belongs to a living process"
            # Another process takes both over, and what was kept ready is gone with the first.
        async with LocalHost(root, [warm(root)]) as later:
            assert set(await later.open(adopts=True)) == {first.id, second.id}
            assert {name for name, _ in running(root_tag(root))} == {first.id, name}
            again = await Sandbox.attach(second.id, host=later)
            assert (await again.exec("echo alive")).text == "alive\n"
            for sandbox_id in (first.id, second.id):
                await later.close(sandbox_id)
        assert left(root) == []

    asyncio.run(check())


def test_as_many_are_ready_as_were_asked_for_last_and_none_where_memory_is_short(root: Path) -> None:
    async def check() -> None:
        driver = warm(root, 2)
        async with LocalHost(root, [driver]) as host:
            for spec, then in ((SPEC, [SPEC]), (OTHER, [SPEC, OTHER]), (OTHER, [OTHER, OTHER])):
                await host.close((await host.create(spec)).id)
                await until_ready(driver, then)
        assert driver.ready == [] and left(root) == []
        driver = warm(root, free=SPEC.limits.memory_bytes)
        async with LocalHost(root, [driver]) as host:
            await host.close((await host.create(SPEC)).id)
            await asyncio.sleep(0.5)
            assert driver.ready == []

    asyncio.run(check())


def test_one_that_died_while_it_waited_is_given_to_nobody(root: Path) -> None:
    async def check() -> None:
        driver = warm(root)
        async with LocalHost(root, [driver]) as host:
            await host.close((await host.create(SPEC)).id)
            await until_ready(driver, [SPEC])
            ((_, process),) = running(root_tag(root))
            process.kill(signal.SIGKILL)
            await process.wait(5)
            sandbox = await Sandbox.create_from(SPEC, host=host)
            assert (await sandbox.exec("echo alive")).text == "alive\n"
            await sandbox.close()
        assert left(root) == []

    asyncio.run(check())


def test_what_a_killed_process_kept_ready_is_swept_by_the_next(root: Path) -> None:
    async def keep() -> None:
        driver = warm(root)
        host = LocalHost(root, [driver])
        await host.open()
        await host.close((await host.create(SPEC)).id)
        await until_ready(driver, [SPEC])
        os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        try:
            asyncio.run(keep())
        finally:
            os._exit(1)
    me = ProcessId.of(child)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL and me is not None
    assert any(name.startswith("warm_") for name, _ in running(root_tag(root)))

    async def succeed() -> None:
        async with LocalHost(root, [warm(root)]) as host:
            assert any("warm_" in line for line in await host.reconcile())

    asyncio.run(succeed())
    assert left(root) == []
