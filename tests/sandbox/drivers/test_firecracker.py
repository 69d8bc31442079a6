"""Firecracker's driver, held against a program that plays Firecracker: a machine's whole life, and what is refused."""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from benthic.errors import SandboxError
from benthic.sandbox.boot import Kernel
from benthic.sandbox.drivers.firecracker import FirecrackerDriver
from benthic.sandbox.drivers.firecracker_api import API, FirecrackerApi, connect_vsock
from benthic.sandbox.drivers.firecracker_machine import FirecrackerMachine
from benthic.sandbox.drivers.firecracker_process import FOLDER, NAME
from benthic.sandbox.drivers.qemu_process import running
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.linux import UidPool, find_hierarchy, root_tag
from benthic.sandbox.records import MIB, Command, Limits, Reason, Result, SandboxSpec, SnapshotRef
from benthic.sandbox.starting import Starter
from tests.sandbox.drivers.firecrackers import kernel_in, played_firecracker, playing_driver

LIMITS = Limits(memory_bytes=16 * MIB, disk_bytes=8 * MIB, num_files=500, num_processes=64, file_bytes=4 * MIB)
SPEC = SandboxSpec(kind="microvm", limits=LIMITS)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="machines under uids of their own need root")


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    with played_firecracker() as path:
        yield path


@pytest.fixture(scope="module")
def driver(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirecrackerDriver]:
    root = tmp_path_factory.mktemp("firecracker")
    (root / "homes").mkdir()
    made = playing_driver(root, program)
    yield made
    asyncio.run(made.reconcile([]))
    assert left_of(root) == []


def left_of(root: Path) -> list[str]:
    """Every trace of machines of a state root."""
    groups = [str(path) for tree in find_hierarchy().trees for path in (tree / root_tag(root)).glob("*/")]
    uids = [str(uid) for uid, home in UidPool().owners().items() if root in home.parents]
    return groups + uids + [name for name, _ in running(root_tag(root), NAME)]


class Running:
    """A machine and a client of its init."""

    def __init__(self, machine: FirecrackerMachine, guest: Guest) -> None:
        self.machine, self.guest = machine, guest

    async def run(self, shell: str) -> Result:
        return await self.guest.run(uuid4().hex, Command(shell=shell, timeout_s=30))

    async def text(self, shell: str) -> str:
        return (await self.run(shell)).text.strip()


@contextlib.asynccontextmanager
async def started(driver: FirecrackerDriver, snapshot: SnapshotRef | None = None) -> AsyncIterator[Running]:
    home = driver.state_root / "homes" / uuid4().hex[:12]
    home.mkdir()
    machine = await driver.start(SPEC, home, snapshot=snapshot)
    try:
        guest = await Guest.attach(machine.connect)
        await guest.configure(replace(machine.setup, cwd="/work", env=(("PATH", "/bin:/usr/bin"),)))
        yield Running(machine, guest)
        await guest.close()
    finally:
        await machine.destroy()
        assert sorted(path.name for path in home.iterdir()) == ["state.json"]
        shutil.rmtree(home)


@needs_root
def test_a_machine_runs_commands_under_a_uid_and_in_a_group_of_its_own(driver: FirecrackerDriver) -> None:
    async def check() -> None:
        async with started(driver) as one, started(driver) as other:
            uids = set()
            for running_ in (one, other):
                assert await running_.text("id -u; pwd; echo $((6 * 7))") == "1000\n/work\n42"
                group = running_.machine.held.group
                assert group is not None and running_.machine.process.pid in group.pids()
                lines = Path(f"/proc/{running_.machine.process.pid}/status").read_text().splitlines()
                fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                uids.add(fields["Uid"].split()[0])
                assert fields["CapEff"] == "0" * 16
                assert (await running_.machine.usage()).cpu_s > 0
            assert len(uids) == 2 and "0" not in uids

    asyncio.run(check())


def test_clones_share_nothing_but_their_beginning(driver: FirecrackerDriver) -> None:
    async def check() -> None:
        async with started(driver) as one, started(driver) as other:
            await one.run("echo of one >/work/file")
            assert await other.text("ls /work") == ""
            assert (one.machine.home / "upper").stat().st_ino != (other.machine.home / "upper").stat().st_ino

    asyncio.run(check())


def test_a_snapshot_begins_others_and_its_machine_goes_on(driver: FirecrackerDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            await one.run("echo kept >/work/file")
            snapshot = await one.machine.snapshot("first")
            await one.run("echo later >/work/file")
            for _ in range(2):
                async with started(driver, snapshot) as branch:
                    assert await branch.text("cat /work/file; echo of the branch >/work/file") == "kept"
            assert await one.text("cat /work/file") == "later"
            await one.machine.freeze()
            kept = await one.machine.snapshot("of-a-paused-one")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.run("true"), 0.5)
            await one.machine.thaw()
            async with started(driver, kept) as branch:
                assert await branch.text("cat /work/file") == "later"
            bigger = replace(SPEC, limits=replace(SPEC.limits, memory_bytes=128 * MIB))
            home = driver.state_root / "homes" / uuid4().hex[:12]
            home.mkdir()
            with pytest.raises(StartFailed, match="memory_mib"):
                await driver.start(bigger, home, snapshot=snapshot)

    asyncio.run(check())


def test_what_is_taken_of_a_snapshot_is_what_firecracker_wrote(driver: FirecrackerDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            (one.machine.home / FOLDER / "saved-memory").symlink_to("elsewhere")
            with pytest.raises(SandboxError, match="snapshot"):
                await one.machine.snapshot("stolen")
            assert await one.text("echo goes on") == "goes on"

    asyncio.run(check())


def test_a_link_in_the_place_of_a_socket_is_not_followed(driver: FirecrackerDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            folder = one.machine.home / FOLDER
            (folder / API).rename(folder / "elsewhere")
            (folder / API).symlink_to("elsewhere")
            with pytest.raises(SandboxError, match="does not answer"):
                await one.machine.freeze()

    asyncio.run(check())


def test_it_is_adopted_by_its_home_and_its_death_has_a_reason(driver: FirecrackerDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            home = one.machine.home
            adopted = await driver.adopt(SPEC, home)
            assert adopted is not None and await adopted.death() is None
            assert await driver.reconcile([home]) == []
            await one.guest.shutdown()
            await one.machine.process.wait(10)
            death = await one.machine.death()
            assert death is not None and death[0] is Reason.CRASHED
            assert "the guest ended with 0" in death[1]
            assert await driver.adopt(SPEC, home) is None
            await adopted.destroy()
            assert (await adopted.death() or [None])[0] is Reason.CLOSED

    asyncio.run(check())


def test_memory_that_ran_out_inside_is_counted_from_the_console(driver: FirecrackerDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            said = os.open(one.machine.home / "console", os.O_WRONLY | os.O_NONBLOCK)
            os.write(said, b"[ 1.0] Out of memory: Killed process 7 (hog)\n[ 1.1] Out of memory: Ki")
            assert await one.machine.out_of_memory_kills() == 1
            os.write(said, b"lled process 8 (hog)\n")
            assert await one.machine.out_of_memory_kills() == 2
            with contextlib.suppress(BlockingIOError):  # a flood fills the FIFO, and no more
                while True:
                    os.write(said, b"x" * 4096)
            assert await one.text("echo alive") == "alive"
            os.close(said)

    asyncio.run(check())


def test_what_belongs_to_no_home_is_swept(driver: FirecrackerDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            gone = await driver.reconcile([])
            assert any(one.machine.home.name in line for line in gone), gone
            assert await one.machine.death() is not None
            await one.guest.close()

    asyncio.run(check())


def test_a_machine_that_dies_while_it_starts_leaves_nothing_and_its_words(driver: FirecrackerDriver) -> None:
    home = driver.state_root / "homes" / uuid4().hex[:12]
    home.mkdir()
    broken = kernel_in(driver.state_root / "broken")
    broken.image.write_bytes(b"no kernel")
    other = FirecrackerDriver(
        driver.state_root,
        Store(driver.state_root / "store"),
        program=driver.program,
        obstacle=lambda: None,
        find_kernel=lambda: broken,
    )
    with pytest.raises(StartFailed, match="PUT /boot-source .400.*not an ELF image"):
        asyncio.run(other.start(SPEC, home))
    assert sorted(path.name for path in home.iterdir()) == ["state.json"]


@pytest.fixture
def api(
    program: Path, tmp_path: Path
) -> Iterator[Callable[[Callable[[FirecrackerApi], Coroutine[Any, Any, None]]], None]]:
    """Runs what is given with the API of a fresh process."""
    process = subprocess.Popen([str(program), "--api-sock", API, "--id", "alone"], cwd=tmp_path)

    def run(story: Callable[[FirecrackerApi], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            client = FirecrackerApi(tmp_path, os.geteuid())
            await client.wait_ready(10)
            await story(client)

        asyncio.run(whole())

    yield run
    process.kill()
    process.wait()


@pytest.mark.parametrize(
    ("ask", "refusal"),
    [
        (lambda api: api.pause(), "before starting"),
        (lambda api: api.save("s", "m"), "before starting"),
        (lambda api: api.load("none", "none"), "Unable to open none"),
    ],
)
def test_a_refusal_names_the_request_and_firecrackers_reason(
    api: Callable[..., None], ask: Callable[[FirecrackerApi], Coroutine[Any, Any, None]], refusal: str
) -> None:
    async def story(client: FirecrackerApi) -> None:
        assert not await client.is_running()
        with pytest.raises(StartFailed, match=f"refused .*{refusal}"):
            await ask(client)

    api(story)


def test_nobody_at_the_socket_is_a_failed_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="does not answer"):
        asyncio.run(FirecrackerApi(tmp_path, os.geteuid()).pause())


@pytest.mark.parametrize(("answer", "is_open"), [(b"OK 1073741824\n", True), (b"", False), (b"OK " + b"9" * 99, False)])
def test_the_vsock_is_open_only_after_its_handshake(tmp_path: Path, answer: bytes, is_open: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"CONNECT 1024\n"
        writer.write(answer)
        if is_open:
            writer.write(b"hello")
        writer.close()

    async def run() -> bytes:
        async with await asyncio.start_unix_server(serve, tmp_path / "vsock"):
            reader, writer = await connect_vsock(tmp_path / "vsock", os.geteuid())
            data = await reader.read()
            writer.close()
            return data

    if is_open:
        assert asyncio.run(run()) == b"hello"
    else:
        with pytest.raises(ConnectionError):
            asyncio.run(run())


def test_the_probe_says_what_is_missing(tmp_path: Path) -> None:
    def detail(**options: Any) -> str:
        probed = asyncio.run(FirecrackerDriver(tmp_path, Store(tmp_path / "store"), **options).probe())
        assert not probed.is_working
        return probed.detail

    assert "no no-such-program program on the PATH; put it there" in detail(program="no-such-program")
    assert "KVM is not: no KVM here" in detail(program="/bin/sh", obstacle=lambda: "no KVM here")
    packed = Kernel("6.1", tmp_path / "vmlinuz", ())
    assert "install lz4" in detail(program="/bin/sh", obstacle=lambda: None, find_kernel=lambda: packed)
    old = Kernel("6.1", tmp_path / "vmlinux", (tmp_path / "00-virtio.ko",))
    assert "without vmw_vsock" in detail(program="/bin/sh", obstacle=lambda: None, find_kernel=lambda: old)


def test_the_kind_takes_it_only_where_it_boots(driver: FirecrackerDriver, tmp_path: Path) -> None:
    def chosen(first: FirecrackerDriver) -> object:
        last = FirecrackerDriver(tmp_path, Store(tmp_path / "store"), program="no-such-program")
        starter = Starter([first, last], max_starting=1, budget_s=60)
        return asyncio.run(starter.choose(SPEC)) is first

    assert chosen(driver)
    assert not chosen(FirecrackerDriver(tmp_path, Store(tmp_path / "store"), program="no-such-program"))
