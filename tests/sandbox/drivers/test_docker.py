"""Containers by a Docker daemon, where one is found; without one it is told so in words."""

import asyncio
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.linux import HomeState, ProcessId, UidPool
from benthic.sandbox.records import MIB, Command, Limits, Reason, Result, SandboxSpec
from tests.sandbox.kinds import require_driver

docker_driver = pytest.importorskip("benthic.sandbox.drivers.docker_driver", reason="needs httpx")
SMALL = SandboxSpec(kind="container", limits=Limits(memory_bytes=64 * MIB, disk_bytes=16 * MIB, num_processes=16))


def make_driver(root: Path, store: Store | None = None, socket: Path | None = None) -> "docker_driver.DockerDriver":
    (root / "homes").mkdir(exist_ok=True)
    return docker_driver.DockerDriver(root, store or Store(root / "store"), socket=socket)


async def new_home(root: Path) -> Path:
    home = root / "homes" / secrets.token_hex(6)
    home.mkdir()
    return home


async def attached(machine: "docker_driver.DockerMachine") -> tuple[Guest, Callable[[str], Awaitable[Result]]]:
    guest = await Guest.attach(machine.connect)
    await guest.configure(replace(machine.setup, cwd="/work"))

    async def shell(text: str) -> Result:
        return await guest.run(secrets.token_hex(4), Command(shell=text, timeout_s=20))

    return guest, shell


def test_without_a_daemon_the_probe_says_so_and_nothing_is_left(tmp_path: Path) -> None:
    driver = make_driver(tmp_path, socket=tmp_path / "no.sock")
    probed = asyncio.run(driver.probe())
    assert not probed.is_working
    assert f"no Docker daemon: there is no {tmp_path / 'no.sock'}" in probed.detail or "need root" in probed.detail
    assert list((tmp_path / "homes").iterdir()) == []
    home = asyncio.run(new_home(tmp_path))
    HomeState(home).record(driver="docker")
    assert asyncio.run(driver.reconcile([])) == []  # what a daemon may hold waits for it
    assert home.is_dir()
    assert tmp_path not in [home.parent.parent for home in UidPool().owners().values()]


def test_without_httpx_every_other_driver_is_there() -> None:
    lines = (
        "import sys, pathlib",
        "sys.modules['httpx'] = None",
        "from benthic.sandbox.probe import all_drivers",
        "print(*(driver.name for driver in all_drivers(pathlib.Path(sys.argv[1]))))",
    )
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-c", "\n".join(lines), root]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["bubblewrap", "crun", "runc", "gvisor", "qemu-microvm", "qemu"]


def test_a_daemon_that_answers_nonsense_is_a_failed_start(tmp_path: Path) -> None:
    async def use() -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_unix_server(hang_up, str(tmp_path / "d.sock")):
            driver = make_driver(tmp_path, socket=tmp_path / "d.sock")
            probed = await driver.probe()
            assert not probed.is_working
            assert await driver.reconcile([]) == []

    asyncio.run(asyncio.wait_for(use(), 20))


@pytest.mark.nightly
def test_a_container_is_taken_over_kept_and_swept(tmp_path: Path) -> None:
    require_driver("docker")

    async def use() -> None:
        driver = make_driver(tmp_path)
        first = await driver.start(SMALL, await new_home(tmp_path))
        guest, shell = await attached(first)
        assert (await shell("echo one > kept; mkdir sub; ln -s /etc/passwd sub/link; id -u")).text.strip() != "0"
        await guest.close()
        again = await make_driver(tmp_path, driver.store).adopt(SMALL, first.home)
        assert again is not None and again.setup == first.setup
        kept = await again.snapshot("kept")
        second = await driver.start(SMALL, await new_home(tmp_path), snapshot=kept)
        guest, shell = await attached(second)
        assert (
            await shell("cat kept; readlink sub/link; echo two > kept && echo fine")
        ).text == "one\n/etc/passwd\nfine\n"
        await guest.close()
        gone = await driver.reconcile([first.home])
        assert gone == [f"container {second.home.name}"]
        assert await first.death() is None
        shutil.rmtree(first.home)  # as if a crash had left the daemon's part alone
        assert f"container {first.home.name}" in await driver.reconcile([])
        assert ProcessId.of(first.process.pid) is None
        driver.store.release("snapshot-kept")

    asyncio.run(asyncio.wait_for(use(), 100))


@pytest.mark.nightly
def test_memory_is_bounded_and_the_kernel_says_so(tmp_path: Path) -> None:
    require_driver("docker")

    async def use() -> None:
        driver = make_driver(tmp_path)
        machine = await driver.start(SMALL, await new_home(tmp_path))
        guest, shell = await attached(machine)
        await shell("head -c 200m /dev/zero | tail -c 190m | wc -c")
        assert await machine.out_of_memory_kills() >= 1
        assert (await shell("echo fine")).text == "fine\n"
        assert (await machine.usage()).peak_memory_bytes > 32 * MIB
        await guest.close()
        assert machine.process.kill()
        assert await machine.process.wait(10)
        for _ in range(50):  # the daemon hears of it a little later
            if (death := await machine.death()) is not None and death[0] is Reason.OUT_OF_MEMORY:
                break
            await asyncio.sleep(0.1)
        assert death is not None
        await asyncio.gather(machine.destroy(), machine.destroy())
        await machine.destroy()

    asyncio.run(asyncio.wait_for(use(), 100))


@pytest.mark.nightly
def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    require_driver("docker")

    async def use() -> None:
        driver = make_driver(tmp_path)
        await driver.probe()
        for pause_s in (0.01, 0.05, 0.1):
            starting = asyncio.ensure_future(driver.start(SMALL, await new_home(tmp_path)))
            await asyncio.sleep(pause_s)
            if not starting.cancel():  # a quick daemon
                await starting.result().destroy()
                continue
            with pytest.raises(asyncio.CancelledError):
                await starting
        with pytest.raises(StartFailed):
            await driver.start(replace(SMALL, limits=Limits(memory_bytes=1)), await new_home(tmp_path))
        for home in (tmp_path / "homes").iterdir():
            shutil.rmtree(home)
        assert await driver.reconcile([]) == []

    asyncio.run(asyncio.wait_for(use(), 100))
