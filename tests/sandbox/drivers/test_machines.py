"""Virtual machines that really run: clones of one template, what they share, what they keep, what they leave."""

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from benthic.sandbox.drivers.microvm import microvm_driver
from benthic.sandbox.drivers.qemu import QemuDriver
from benthic.sandbox.drivers.qemu_machine import QemuMachine
from benthic.sandbox.drivers.qemu_process import running
from benthic.sandbox.drivers.vm import vm_driver
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import Guest, connection
from benthic.sandbox.images import Store
from benthic.sandbox.linux import UidPool, find_hierarchy, root_tag
from benthic.sandbox.records import MIB, Command, Limits, Reason, Result, SandboxSpec, SnapshotRef
from tests.sandbox.kinds import require_kind

LIMITS = Limits(memory_bytes=96 * MIB, disk_bytes=32 * MIB, num_files=500, num_processes=64, file_bytes=16 * MIB)
DRIVERS = {"microvm": microvm_driver, "vm": vm_driver}
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="machines under uids of their own need root")


@pytest.fixture(scope="module", params=["microvm", pytest.param("vm", marks=pytest.mark.nightly)])
def driver(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[QemuDriver]:
    require_kind(request.param)
    root = tmp_path_factory.mktemp("machines")
    (root / "homes").mkdir()
    made = DRIVERS[request.param](root, Store(root / "store"))
    yield made
    asyncio.run(made.reconcile([]))
    assert left_of(root) == []


def left_of(root: Path) -> list[str]:
    """Every trace of machines of a state root."""
    groups = [str(path) for tree in find_hierarchy().trees for path in (tree / root_tag(root)).glob("*/")]
    uids = [str(uid) for uid, home in UidPool().owners().items() if root in home.parents]
    return groups + uids + [name for name, _ in running(root_tag(root))]


class Running:
    """A machine and a client of its init."""

    def __init__(self, machine: QemuMachine, guest: Guest) -> None:
        self.machine, self.guest = machine, guest

    async def run(self, shell: str, **fields: object) -> Result:
        return await self.guest.run(uuid4().hex, Command(shell=shell, timeout_s=60, **fields))  # type: ignore[arg-type]

    async def text(self, shell: str) -> str:
        return (await self.run(shell)).text.strip()


def spec_of(driver: QemuDriver) -> SandboxSpec:
    return SandboxSpec(kind=driver.kind, limits=LIMITS)


@contextlib.asynccontextmanager
async def started(driver: QemuDriver, snapshot: SnapshotRef | None = None) -> AsyncIterator[Running]:
    home = driver.state_root / "homes" / uuid4().hex[:12]
    home.mkdir()
    machine = await driver.start(spec_of(driver), home, snapshot=snapshot)
    try:
        guest = await Guest.attach(machine.connect)
        await guest.configure(replace(machine.setup, cwd="/work", env=(("PATH", "/bin:/usr/bin"),)))
        yield Running(machine, guest)
        await guest.close()
    finally:
        await machine.destroy()
        shutil.rmtree(home)


def test_clones_share_nothing_but_their_beginning(driver: QemuDriver) -> None:
    async def check() -> None:
        async with started(driver) as one, started(driver) as other:
            await one.run("echo of one >/work/file; echo of one >/dev/shm/file")
            assert await other.text("cat /work/file /dev/shm/file 2>&1 | grep -c 'No such'") == "2"
            drawn = [await machine.text("head -c 16 /dev/urandom | od -An -tx1") for machine in (one, other)]
            assert drawn[0] != drawn[1]
            for machine in (one, other):
                assert abs(int(await machine.text("date +%s")) - time.time()) < 30
            assert one.guest.hello.boot_id and await one.text("id -u; pwd") == "1000\n/work"

    asyncio.run(check())


def test_no_greeting_is_lost_however_often_clients_come_and_go(
    driver: QemuDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_GREETING_S", "GREETING_S"):
        monkeypatch.setattr(connection, name, 60.0)  # a lost one is not sent again within the test

    async def check() -> None:
        async with started(driver) as one:
            await one.guest.close()
            for _ in range(10):
                guest = await Guest.attach(one.machine.connect)
                await guest.close()

    asyncio.run(check())


def test_a_clone_is_configured_anew_and_finds_nothing_at_work_in_it(driver: QemuDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            assert await one.guest.jobs() == []
            assert await one.text("cat /proc/[0-9]*/comm | grep -c ext4lazyinit") == "0"
        home = driver.state_root / "homes" / uuid4().hex[:12]
        home.mkdir()
        machine = await driver.start(spec_of(driver), home)
        try:
            guest = await Guest.attach(machine.connect)
            assert not guest.hello.is_configured
            await guest.close()
        finally:
            await machine.destroy()
            shutil.rmtree(home)

    asyncio.run(check())


def test_the_host_runs_it_under_a_uid_and_in_a_group_of_its_own(driver: QemuDriver) -> None:
    async def check() -> None:
        async with started(driver) as one, started(driver) as other:
            uids = set()
            for running_ in (one, other):
                assert running_.machine.group is not None
                for pid in running_.machine.group.pids():
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
                    assert fields["Uid"].split()[0] != "0" and fields["CapEff"] == "0" * 16
                    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2"
                    uids.add(fields["Uid"].split()[0])
            assert len(uids) == 2
            assert (await one.machine.usage()).cpu_s > 0

    asyncio.run(check())


def test_memory_and_disk_end_at_their_limits_and_it_goes_on(driver: QemuDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            fill = "for n in 1 2 3; do dd if=/dev/zero of=/work/$n bs=1M count=15; done; du -sm /work | cut -f1"
            full = await one.run(fill)
            assert b"No space left" in full.stderr and 30 <= int(full.text) <= 32
            assert await one.text("rm /work/?; echo x >/work/y; cat /work/y") == "x"
            before = await one.machine.out_of_memory_kills()
            hog = await one.run("awk 'BEGIN{s=1; while (i++ < 22) s=s s; while (j++ < 200) a[j]=s j}'")
            assert hog.returncode != 0
            assert await one.machine.out_of_memory_kills() > before
            assert await one.machine.death() is None
            assert await one.text("echo alive") == "alive"

    asyncio.run(check())


def test_a_snapshot_keeps_memory_and_disk_and_the_machine_goes_on(driver: QemuDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            await one.run("echo kept >/work/file; (while sleep 0.2; do date >/dev/shm/beat; done) >/dev/null 2>&1 &")
            snapshot = await one.machine.snapshot("first")
            await one.run("echo later >/work/file")
            async with started(driver, snapshot) as branch:
                assert await branch.text("cat /work/file") == "kept"
                assert await branch.text("rm -f /dev/shm/beat; sleep 2; ls /dev/shm") == "beat", "it went on running"
                await branch.run("echo of the branch >/work/file")
            assert await one.text("cat /work/file") == "later"
            bigger = replace(spec_of(driver), limits=replace(LIMITS, memory_bytes=128 * MIB))
            home = driver.state_root / "homes" / uuid4().hex[:12]
            home.mkdir()
            with pytest.raises(StartFailed, match="memory_mib"):
                await driver.start(bigger, home, snapshot=snapshot)

    asyncio.run(check())


def test_it_is_adopted_by_its_home_and_its_death_has_a_reason(driver: QemuDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            home = one.machine.home
            adopted = await driver.adopt(spec_of(driver), home)
            assert adopted is not None and await adopted.death() is None
            await one.machine.freeze()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(one.run("true"), 0.5)
            await adopted.thaw()
            assert await one.text("echo on") == "on"
            assert await driver.reconcile([home]) == []
            assert adopted.group is not None
            for pid in adopted.group.pids():
                os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.2)
            death = await adopted.death()
            assert death is not None and death[0] is Reason.CRASHED
            assert await driver.adopt(spec_of(driver), home) is None
            await adopted.destroy()

    asyncio.run(check())


def test_a_machine_that_is_switched_off_ends(driver: QemuDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            began = time.monotonic()
            await one.guest.shutdown()
            while await one.machine.death() is None:
                assert time.monotonic() - began < 20
                await asyncio.sleep(0.05)

    asyncio.run(check())


def test_what_belongs_to_no_home_is_swept(driver: QemuDriver) -> None:
    async def check() -> None:
        async with started(driver) as one:
            name = one.machine.home.name
            gone = await driver.reconcile([])
            assert any(name in line for line in gone), gone
            assert await one.machine.death() is not None
            await one.guest.close()

    asyncio.run(check())
