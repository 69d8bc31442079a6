"""One machine of Firecracker that runs, found again by its home folder alone."""

import asyncio
import os
import shutil
import stat
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benthic.errors import SandboxError
from benthic.sandbox.drivers.disks import copy_sparse
from benthic.sandbox.drivers.firecracker_api import VSOCK, FirecrackerApi, connect_vsock
from benthic.sandbox.drivers.firecracker_process import CONSOLE, FOLDER, Console
from benthic.sandbox.drivers.machine_snapshot import keep_snapshot
from benthic.sandbox.drivers.qemu_machine import OOM_LINE, job_setup, remove_resources
from benthic.sandbox.drivers.templates import MEMORY, STATE, UPPER
from benthic.sandbox.errors import NotSupported, StartFailed
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.linux import Cgroup, ProcessId
from benthic.sandbox.network import Egress
from benthic.sandbox.records import CallResult, FunctionCall, Network, Reason, SandboxSpec, SnapshotRef, Usage

_SAVED = {MEMORY: "saved-memory", STATE: "saved-state"}
"""What Firecracker calls the files that it writes itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a machine holds beside its process; each is in `state.json` before it is taken."""

    group: Cgroup | None
    uid: int | None
    shape: dict[str, Any]
    """What a machine must have in common with one that its snapshot is loaded into."""


class FirecrackerMachine:
    """See `driver.Machine`."""

    def __init__(self, home: Path, spec: SandboxSpec, store: Store, process: ProcessId, held: Held) -> None:
        self.home, self.setup, self.process, self.held = home, job_setup(spec.limits), process, held
        self._store = store
        self._api = FirecrackerApi(home / FOLDER, self._uid)
        self._console = Console(home)
        self._num_oom_kills = 0
        self._is_destroyed = False
        self._egress: Egress | None = None

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        """A new stream to init; an older one is closed by init."""
        return await connect_vsock(self.home / FOLDER / VSOCK, self._uid)

    async def open_network(self, guest: Guest, network: Network) -> None:
        """By sockets that init keeps; the guest has no other network than its loopback."""
        if network.rules:
            self._egress = await Egress.open(guest.loopback, network)

    async def freeze(self) -> None:
        """Stops its processors."""
        await self._obey("pause")

    async def thaw(self) -> None:
        """Its clock stood still meanwhile; whoever cares sets it through init."""
        await self._obey("resume")

    async def snapshot(self, name: str) -> SnapshotRef:
        """Memory, processor and disk, as three files and a record; it stands still for that long."""
        with self._store.incoming() as draft:
            files = [draft / MEMORY, draft / STATE, draft / UPPER]
            try:
                was_running = await self._api.is_running()
                await self._api.pause()
                try:
                    await save(self._api, self.home, self._uid, draft)
                    await asyncio.to_thread(copy_sparse, self.home / UPPER, draft / UPPER)
                finally:
                    if was_running:
                        await self._api.resume()
            except (OSError, StartFailed) as error:
                raise SandboxError(f"sandbox {self.home.name} cannot be kept as a snapshot: {error}") from None
            source = f"snapshot {name} of sandbox {self.home.name}"
            return await asyncio.to_thread(keep_snapshot, self._store, "microvm", name, files, self.held.shape, source)

    async def usage(self) -> Usage:
        """Of Firecracker as a whole; empty where there are no control groups."""
        return Usage() if self.held.group is None else await asyncio.to_thread(self.held.group.usage)

    async def death(self) -> tuple[Reason, str] | None:
        """A guest that switches itself off or whose kernel fails ends its Firecracker."""
        if self._is_destroyed:
            return Reason.CLOSED, "it was destroyed"
        if self.process.is_alive():
            return None
        if self.held.group is not None and self.held.group.out_of_memory_kills():
            return Reason.OUT_OF_MEMORY, "the host's kernel ended its virtual machine for memory"
        words = self._console.last_words() or "it printed nothing"
        return Reason.CRASHED, f"its virtual machine ended by itself; {words}"

    async def out_of_memory_kills(self) -> int:
        """As the guest's kernel says on its console."""
        self._num_oom_kills += sum(1 for line in self._console.lines() if OOM_LINE.search(line))
        return self._num_oom_kills

    async def call(self, call: FunctionCall) -> CallResult:
        """No warm workers here."""
        raise NotSupported("a microvm has no warm workers; its image's own Python runs functions")

    async def destroy(self) -> None:
        """Ends Firecracker, then takes away what it had."""
        self._is_destroyed = True
        if self._egress is not None:
            await self._egress.close()
        self._console.close()
        await remove_machine(self.home, self._store, self.process, self.held.group, self.held.uid)

    async def _obey(self, what: str) -> None:
        try:
            await (self._api.pause() if what == "pause" else self._api.resume())
        except StartFailed as error:
            raise SandboxError(f"the virtual machine of sandbox {self.home.name} does not {what}: {error}") from None

    @property
    def _uid(self) -> int:
        return os.geteuid() if self.held.uid is None else self.held.uid


async def save(api: FirecrackerApi, home: Path, uid: int, target: Path) -> None:
    """Writes a paused machine's memory and state into the folder `target`.

    Firecracker writes them in its own folder; what is taken from there is a copy that it cannot alter any more.

    Raises:
        StartFailed: it refuses, or what it wrote is not its own.
        OSError: they cannot be read.
    """
    await api.save(_SAVED[STATE], _SAVED[MEMORY])
    for kept, written in _SAVED.items():
        await asyncio.to_thread(_take, home / FOLDER / written, uid, target / kept)


async def remove_machine(
    home: Path, store: Store, process: ProcessId | None, group: Cgroup | None, uid: int | None
) -> None:
    """Everything that `state.json` of a home may name, in any state, as often as called."""
    if process is not None:
        process.kill()
        await process.wait(10.0)
    await asyncio.to_thread(remove_folder, home)
    await remove_resources(home, store, None, group, uid)


def remove_folder(home: Path) -> None:
    """What a Firecracker that has ended ran in."""
    shutil.rmtree(home / FOLDER, ignore_errors=True)
    (home / CONSOLE).unlink(missing_ok=True)


def _take(written: Path, uid: int, target: Path) -> None:
    handle = os.open(written, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != uid:
            raise StartFailed(f"{written} is no file that Firecracker wrote", stage="snapshot")
        copy_sparse(Path(f"/proc/self/fd/{handle}"), target)
    finally:
        os.close(handle)
    written.unlink()
