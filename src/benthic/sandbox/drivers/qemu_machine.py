"""One virtual machine that runs, found again by its home folder alone.

The host's own means are QEMU's process, its control group, and what the guest's kernel says on its console; init is
asked for nothing but commands.
"""

import asyncio
import contextlib
import os
import re
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benthic.errors import SandboxError
from benthic.sandbox.drivers.disks import copy_sparse, to_qcow2
from benthic.sandbox.drivers.guest_hardware import owner
from benthic.sandbox.drivers.machine_snapshot import keep_snapshot
from benthic.sandbox.drivers.qemu_process import CONTROL, LOG, PORT, connect_port, last_words
from benthic.sandbox.drivers.qmp import Qmp, QmpError, qmp
from benthic.sandbox.drivers.templates import MEMORY, UPPER
from benthic.sandbox.errors import NotSupported
from benthic.sandbox.guest import Guest, JobSetup
from benthic.sandbox.images import Store
from benthic.sandbox.linux import Cgroup, HomeState, ProcessId, UidPool, build_filter
from benthic.sandbox.network import Egress
from benthic.sandbox.records import CallResult, FunctionCall, Limits, Network, Reason, SandboxSpec, SnapshotRef, Usage

OOM_LINE = re.compile(r"Out of memory: Killed process|Memory cgroup out of memory: Killed process")
"""Of a guest's kernel, on its console."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a machine holds beside its process; each is in `state.json` before it is taken."""

    group: Cgroup | None
    uid: int | None
    shape: dict[str, Any]
    """What a machine must have in common with one that its snapshot is loaded into."""
    base: Path | None
    """The disk under a qcow2 overlay."""


class QemuMachine:
    """See `driver.Machine`."""

    def __init__(self, home: Path, spec: SandboxSpec, store: Store, process: ProcessId, resources: Resources) -> None:
        self.home, self.setup = home, job_setup(spec.limits)
        self._kind, self._store, self._process, self._resources = spec.kind, store, process, resources
        self._num_oom_kills = 0
        self._is_destroyed = False
        self._egress: Egress | None = None

    @property
    def group(self) -> Cgroup | None:
        """Its control group; None without root."""
        return self._resources.group

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        """QEMU serves one stream at a time: another one waits until the older is closed."""
        return await connect_port(self.home)

    async def open_network(self, guest: Guest, network: Network) -> None:
        """By sockets that init keeps; the guest has no other network than its loopback."""
        if network.rules:
            self._egress = await Egress.open(guest.loopback, network)

    async def freeze(self) -> None:
        """Stops its processors."""
        await self._control("stop")

    async def thaw(self) -> None:
        """Its clock stood still meanwhile; whoever cares sets it through init."""
        await self._control("cont")

    async def snapshot(self, name: str) -> SnapshotRef:
        """Memory and disk, as two files and a record of the machine that they fit; it stands still for that long."""
        with self._store.incoming() as draft:
            try:
                async with qmp(self.home / CONTROL) as control:
                    await self._write(control, draft)
            except (OSError, QmpError) as error:
                raise SandboxError(f"sandbox {self.home.name} cannot be kept as a snapshot: {error}") from None
            source = f"snapshot {name} of sandbox {self.home.name}"
            files = [draft / MEMORY, draft / UPPER]
            return await asyncio.to_thread(
                keep_snapshot, self._store, self._kind, name, files, self._resources.shape, source
            )

    async def usage(self) -> Usage:
        """Of QEMU as a whole; empty where there are no control groups."""
        group = self._resources.group
        return Usage() if group is None else await asyncio.to_thread(group.usage)

    async def death(self) -> tuple[Reason, str] | None:
        """A guest that switches itself off or whose kernel fails ends its QEMU."""
        if self._is_destroyed:
            return Reason.CLOSED, "it was destroyed"
        if self._process.is_alive():
            return None
        group = self._resources.group
        if group is not None and group.out_of_memory_kills():
            return Reason.OUT_OF_MEMORY, "the host's kernel ended its virtual machine for memory"
        return Reason.CRASHED, f"its virtual machine ended by itself; {last_words(self.home) or 'QEMU said nothing'}"

    async def out_of_memory_kills(self) -> int:
        """As the guest's kernel says on its console."""
        with contextlib.suppress(OSError, QmpError):
            async with qmp(self.home / CONTROL) as control:
                self._num_oom_kills += await _new_oom_kills(control)
        return self._num_oom_kills

    async def call(self, call: FunctionCall) -> CallResult:
        """No warm workers here."""
        raise NotSupported(f"a {self._kind} has no warm workers; its image's own Python runs functions")

    async def destroy(self) -> None:
        """Ends QEMU, then takes away what it had."""
        self._is_destroyed = True
        if self._egress is not None:
            await self._egress.close()
        self._process.kill()
        await remove_resources(self.home, self._store, self._process, self._resources.group, self._resources.uid)

    async def _control(self, command: str) -> None:
        try:
            async with qmp(self.home / CONTROL) as control:
                await control.execute(command)
        except (OSError, QmpError) as error:
            raise SandboxError(f"the virtual machine of sandbox {self.home.name} does not obey: {error}") from None

    async def _write(self, control: Qmp, draft: Path) -> None:
        was_running = (await control.execute("query-status"))["running"]
        await control.execute("stop")
        try:
            await control.ignore_shared_memory(False)
            await control.migrate_to(draft / MEMORY)
            await asyncio.to_thread(self._copy_disk, draft / UPPER)
        finally:
            if was_running:
                await control.execute("cont")

    def _copy_disk(self, target: Path) -> None:
        if self._resources.base is None:
            copy_sparse(self.home / UPPER, target)
        else:
            to_qcow2(self.home / UPPER, target, base=self._resources.base)


def job_setup(limits: Limits) -> JobSetup:
    """Of a machine's commands: the limits of each process; the guest's kernel has those of all."""
    rlimits = (
        ("core", 0),
        ("fsize", limits.file_bytes),
        ("nofile", limits.num_open_files),
        ("nproc", limits.num_processes),
    )
    return JobSetup(cwd="/", rlimits=rlimits, seccomp=build_filter())


async def remove_resources(
    home: Path, store: Store, process: ProcessId | None, group: Cgroup | None, uid: int | None
) -> None:
    """Everything that `state.json` of a home may name, in any state, as often as called."""
    if process is not None:
        process.kill()
        await process.wait(10.0)
    if group is not None and not await group.remove():
        raise SandboxError(f"processes {group.pids()} of sandbox {home.name} do not end; look into their state")
    for name in (PORT, CONTROL, UPPER, LOG):
        (home / name).unlink(missing_ok=True)
    if not os.geteuid():
        UidPool().release(home, uid)
    store.release(owner(home))
    if home.is_dir():
        HomeState(home).record(driver=None, kind=None, pid=None, start_ticks=None, uid=None, name=None)


async def _new_oom_kills(control: Qmp) -> int:
    console = await control.execute("ringbuf-read", device="console", size=1 << 16)
    return len(OOM_LINE.findall(console))
