"""Containers by each runtime that this machine has: life, limits, what they see of the host, what they leave."""

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benthic.sandbox.drivers.container import ContainerDriver
from benthic.sandbox.drivers.container_machine import ContainerMachine
from benthic.sandbox.drivers.oci_runtime import RUNTIMES
from benthic.sandbox.drivers.scratch import Scratch
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.linux import ProcessId, UidPool, find_hierarchy, group_name, mounts, root_tag
from benthic.sandbox.records import MIB, Command, Limits, Reason, Result, SandboxSpec, SnapshotRef

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containers need root")
SPEC = SandboxSpec(kind="container")
SMALL = Limits(memory_bytes=64 * MIB, disk_bytes=16 * MIB, num_files=200, num_processes=32)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("images") / "store")


@pytest.fixture(params=["crun", "runc", pytest.param("gvisor", marks=pytest.mark.nightly)])
def driver(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Iterator[ContainerDriver]:
    program = RUNTIMES[request.param].program
    if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip(f"there is no {program}: install the Debian package {program}")
    (tmp_path / "homes").mkdir()
    made = ContainerDriver(tmp_path, store, runtime=request.param)
    yield made
    asyncio.run(made.reconcile([]))
    assert left_of(tmp_path, store) == []


@pytest.fixture
def crun(tmp_path: Path, store: Store) -> Iterator[ContainerDriver]:
    """For what does not depend on the runtime."""
    if shutil.which("crun") is None:
        pytest.skip("there is no crun: install the Debian package crun")
    (tmp_path / "homes").mkdir()
    made = ContainerDriver(tmp_path, store)
    yield made
    asyncio.run(made.reconcile([]))
    assert left_of(tmp_path, store) == []


def left_of(root: Path, store: Store) -> list[str]:
    """Every trace of containers of a state root."""
    groups = [path for tree in find_hierarchy().trees for path in (tree / root_tag(root)).glob("*") if path.is_dir()]
    tag = f"/{root_tag(root)}/"
    inside = [path.parent.name for path in Path("/proc").glob("[0-9]*/cgroup") if tag in read(path)]
    processes = [pid for pid in inside if ProcessId.of(int(pid)) is not None]  # not those that wait to be reaped
    claims = [home for home in UidPool().owners().values() if root in home.parents]
    return [*map(str, groups), *processes, *map(str, mounts.mounts_below(root)), *map(str, claims), *store.owners()]


def read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def new_home(driver: ContainerDriver) -> Path:
    home = driver.root / "homes" / secrets.token_hex(6)
    home.mkdir()
    return home


@contextlib.asynccontextmanager
async def started(
    driver: ContainerDriver, spec: SandboxSpec = SPEC, snapshot: SnapshotRef | None = None
) -> AsyncIterator[tuple[ContainerMachine, Callable[..., Awaitable[Result]]]]:
    """A container, and a call that runs a shell command in it."""
    home = new_home(driver)
    machine = await driver.start(spec, home, snapshot=snapshot)
    guest = await Guest.attach(machine.connect)
    try:
        await guest.configure(replace(machine.setup, cwd="/work"))

        async def shell(text: str, user: str | None = None, timeout_s: float = 30.0) -> Result:
            return await guest.run(secrets.token_hex(4), Command(shell=text, user=user, timeout_s=timeout_s))

        yield machine, shell
    finally:
        await guest.close()
        await machine.destroy()
        shutil.rmtree(home)


def test_the_probe_starts_one(driver: ContainerDriver) -> None:
    result = asyncio.run(driver.probe())
    assert result.is_working, result.detail
    assert driver.runtime.program in result.detail
    assert list((driver.root / "homes").iterdir()) == []


def test_a_probe_without_the_runtime_names_its_package(crun: ContainerDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    result = asyncio.run(crun.probe())
    assert not result.is_working
    assert "install the Debian package crun" in result.detail


def test_a_command_is_an_ordinary_user_without_any_right_over_the_host(driver: ContainerDriver) -> None:
    async def use() -> None:
        async with started(driver) as (machine, shell):
            fields = {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
            if driver.name == "gvisor":
                del fields["NoNewPrivs"]  # its kernel tells nobody
            result = await shell(f"id -u; pwd; grep -E '^({'|'.join(fields)}):' /proc/self/status; touch x")
            told = [word for name, value in fields.items() for word in (f"{name}:", value)]
            assert result.text.split() == ["1000", "/work", *told]
            assert result.stderr == b""
            host_uid = machine.process.pid and os.stat(f"/proc/{machine.process.pid}").st_uid
            # gVisor's kernel is nobody's, in a user namespace of its own; who touches files has the sandbox's uids.
            assert host_uid >= UidPool().first or (driver.name == "gvisor" and host_uid == 65534)
            assert (await shell("id -u; touch /bin/made && ls -n /bin/made", user="root")).text.startswith(
                "0\n-rw-r--r--"
            )
            assert (Scratch(machine.home).upper / "bin" / "made").stat().st_uid == 0  # shifted back on disk

    asyncio.run(use())


def test_the_host_is_not_seen_and_its_devices_keep_their_owner(driver: ContainerDriver, tmp_path: Path) -> None:
    before = os.stat("/dev/null")
    os.environ["CANARY"] = "benthic-canary"

    async def use() -> str:
        async with started(driver) as (_, shell):
            texts = [
                "cat /proc/1/environ /proc/*/environ /proc/*/cmdline 2>&1 | tr '\\0' ' '",
                "ls -l /proc/1/fd /proc/1/root /proc/1/cwd /proc/self/fd 2>&1",
                "cat /proc/self/mountinfo /proc/mounts",
                "ls /; ls /proc | grep -c '^[0-9]'; hostname; ip addr 2>/dev/null",
            ]
            return "".join([(await shell(text, user=user)).text for text in texts for user in ("root", None)])

    try:
        seen = asyncio.run(use())
    finally:
        del os.environ["CANARY"]
    assert "benthic-canary" not in seen
    assert str(tmp_path) not in seen
    after = os.stat("/dev/null")
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


@pytest.mark.parametrize("disk", ["memory", "file"])
def test_a_full_disk_is_an_error_of_the_command_and_not_of_the_sandbox(crun: ContainerDriver, disk: str) -> None:
    limits = SMALL if disk == "memory" else replace(SMALL, disk_bytes=40 * MIB)

    async def use() -> None:
        async with started(crun, replace(SPEC, limits=limits)) as (machine, shell):
            result = await shell("dd if=/dev/zero of=big bs=1M count=60")
            assert result.returncode == 1
            assert b"No space left" in result.stderr
            written = (await shell("stat -c %s big")).text
            assert limits.disk_bytes * 3 // 4 <= int(written) <= limits.disk_bytes * 5 // 4
            assert (await shell("rm big; for i in $(seq 400); do touch f$i || exit 7; done")).returncode == 7
            assert (await shell("rm f*; echo fine")).text == "fine\n"
            assert await machine.death() is None

    asyncio.run(use())


def test_memory_and_forks_are_bounded_and_the_kernel_says_so(crun: ContainerDriver) -> None:
    async def use() -> None:
        async with started(crun, replace(SPEC, limits=SMALL)) as (machine, shell):
            result = await shell("head -c 200m /dev/zero | tail | wc -c")
            assert await machine.out_of_memory_kills() >= 1, result
            bomb = await shell("for i in $(seq 100); do sleep 1 & done", timeout_s=3)
            assert b"fork" in bomb.stderr
            assert len(machine.group.pids()) <= RUNTIMES["crun"].group_limits(SMALL).num_processes
            while len(machine.group.pids()) > 1:
                await asyncio.sleep(0.05)
            assert (await shell("echo fine")).text == "fine\n"
            assert await machine.death() is None
            assert (await machine.usage()).peak_memory_bytes > 32 * MIB

    asyncio.run(use())


def test_a_frozen_container_stands_still_and_goes_on(crun: ContainerDriver) -> None:
    async def use() -> None:
        async with started(crun) as (machine, shell):
            await shell("(while :; do echo >>ticks; sleep 0.01; done) >/dev/null 2>&1 &")
            ticks = Scratch(machine.home).upper / "work" / "ticks"
            while not ticks.exists():
                await asyncio.sleep(0.01)
            await machine.freeze()
            await asyncio.sleep(0.05)
            before = ticks.stat().st_size
            await asyncio.sleep(0.2)
            assert ticks.stat().st_size == before
            await machine.thaw()
            await asyncio.sleep(0.5)
            assert ticks.stat().st_size > before

    asyncio.run(use())


def test_a_snapshot_starts_others_that_go_separate_ways(driver: ContainerDriver, store: Store) -> None:
    async def use() -> None:
        async with started(driver) as (machine, shell):
            await shell("echo one >kept; chmod 600 kept; ln kept linked")
            await shell("rm /bin/vi; mkdir -p /opt/a/b", user="root")
            first = await machine.snapshot("first")
            async with started(driver, snapshot=first) as (child, inside):
                assert (await inside("cat kept; stat -c %a,%h linked")).text == "one\n600,2\n"
                assert (await inside("ls /bin/vi /opt/a")).text == "/opt/a:\nb\n"
                await inside("echo two >kept")
                second = await child.snapshot("second")
            assert len(second.layers) == 2
            assert (await shell("cat kept")).text == "one\n"
            async with started(driver, snapshot=second) as (_, inside):
                assert (await inside("cat kept; ls /opt/a")).text == "two\nb\n"

    try:
        asyncio.run(use())
    finally:
        for name in ("first", "second"):
            store.release(f"snapshot-{name}")


def test_another_process_finds_a_container_that_lives_on(driver: ContainerDriver, store: Store) -> None:
    async def use() -> None:
        async with started(driver) as (machine, shell):
            await shell("echo here >mark")
            other = ContainerDriver(driver.root, store, runtime=driver.name)
            found = await other.adopt(SPEC, machine.home)
            assert found is not None
            assert found.setup == machine.setup
            guest = await Guest.attach(found.connect)
            assert (await guest.run("again", Command(shell="cat /work/mark"))).text == "here\n"
            await guest.close()
            await found.destroy()
            assert await machine.death() is not None
            assert await other.adopt(SPEC, machine.home) is None

    asyncio.run(use())


def test_the_end_of_init_is_the_end_of_the_sandbox_and_is_called_a_crash(crun: ContainerDriver) -> None:
    async def use() -> None:
        async with started(crun) as (machine, shell):
            await shell("sleep 1000 >/dev/null 2>&1 &")
            assert machine.process.kill()
            assert await machine.process.wait(10)
            assert (await machine.death() or (None,))[0] == Reason.CRASHED
            await machine.destroy()
            await machine.destroy()

    asyncio.run(use())


def test_what_has_no_home_any_more_is_swept_and_neighbours_are_left_alone(
    driver: ContainerDriver, store: Store
) -> None:
    async def use() -> None:
        async with started(driver) as (machine, shell):
            orphan = new_home(driver)
            await driver.start(SPEC, orphan)
            homeless = new_home(driver)
            await driver.start(SPEC, homeless)
            subprocess.run(["umount", "-l", homeless / "disk"], check=True)
            shutil.rmtree(homeless)
            gone = await ContainerDriver(driver.root, store, runtime=driver.name).reconcile([machine.home])
            assert any(orphan.name in line for line in gone)
            assert any(homeless.name in line for line in gone)
            assert (await shell("echo fine")).text == "fine\n"
            shutil.rmtree(orphan)

    asyncio.run(use())


def test_a_start_that_fails_or_is_cancelled_leaves_nothing(
    crun: ContainerDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled() -> None:
        home = new_home(crun)
        starting = asyncio.ensure_future(crun.start(SPEC, home))
        await asyncio.sleep(0.02)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(cancelled())
    assert left_of(crun.root, crun.store) == []

    def broken(*_: object, **__: object) -> None:
        raise OSError("no such disk")

    monkeypatch.setattr(Scratch, "create", broken)
    with pytest.raises(StartFailed, match="disk: no such disk") as caught:
        asyncio.run(crun.start(SPEC, new_home(crun)))
    assert caught.value.stage == "disk"
    assert left_of(crun.root, crun.store) == []


def test_a_long_state_root_is_no_obstacle(tmp_path: Path, store: Store) -> None:
    root = tmp_path / ("long" * 30)
    (root / "homes").mkdir(parents=True)

    async def use() -> None:
        async with started(ContainerDriver(root, store)) as (_, shell):
            assert (await shell("echo fine")).text == "fine\n"

    asyncio.run(use())
    assert left_of(root, store) == []


def test_groups_carry_the_state_roots_tag(crun: ContainerDriver) -> None:
    home = new_home(crun)
    assert group_name(home) == f"{root_tag(crun.root)}/{home.name}"
