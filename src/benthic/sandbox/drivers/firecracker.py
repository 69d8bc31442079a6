"""MicroVMs by Firecracker, where its program is on the PATH and a guest of it boots under KVM.

As with QEMU, a sandbox is a clone of a booted machine: Firecracker loads its state, maps its memory privately, and
init answers a moment later. Init listens on a vsock, which Firecracker offers to the host as a unix socket.
"""

import asyncio
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benthic.errors import SandboxError
from benthic.sandbox.boot import HOW_TO_GET, Kernel, find_kernel
from benthic.sandbox.boot.modules import VSOCK as VSOCK_MODULE
from benthic.sandbox.boot.modules import module_name
from benthic.sandbox.drivers.accelerator import Accelerator, kvm_obstacle
from benthic.sandbox.drivers.disks import copy_sparse, make_upper
from benthic.sandbox.drivers.firecracker_api import VSOCK, FirecrackerApi, connect_vsock
from benthic.sandbox.drivers.firecracker_machine import FirecrackerMachine, Held, remove_folder, remove_machine, save
from benthic.sandbox.drivers.firecracker_process import FOLDER, NAME, Console, start_firecracker
from benthic.sandbox.drivers.guest_hardware import collect_hardware, saved_shape
from benthic.sandbox.drivers.lost_machines import end_machine, machine_homes
from benthic.sandbox.drivers.machine_snapshot import read_snapshot
from benthic.sandbox.drivers.qemu_command import Board, Hardware
from benthic.sandbox.drivers.qemu_process import running
from benthic.sandbox.drivers.templates import MEMORY, STATE, UPPER, Templates, made_once, template_key
from benthic.sandbox.drivers.trial import try_out
from benthic.sandbox.errors import GuestLost, StartFailed
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.linux import Cgroup, HomeState, Launch, ProcessId, UidPool, find_hierarchy, group_name, root_tag
from benthic.sandbox.records import MIB, Kind, Limits, ProbeResult, SandboxSpec, SnapshotRef

PROGRAM = "firecracker"
BOARD = Board(
    kind="microvm",
    name="firecracker",
    machine="firecracker",
    bus="device",
    max_disks=16,
    disk_format="raw",
    modules=("virtio_mmio", "virtio_blk", VSOCK_MODULE, "erofs", "overlay"),
)
VMM_MEMORY_BYTES = 128 * MIB
"""Allowed on top of the sandbox's memory: the guest's kernel, Firecracker, and its disks' cache."""
VMM_THREADS = 64
"""Those of the guest are limited inside."""
BOOT_S = 10.0
API_START_S = 5.0


class FirecrackerDriver:
    """See `driver.Driver`. Root gives each machine a control group and a host uid; others run it as themselves."""

    kind: Kind = "microvm"
    name = BOARD.name

    def __init__(
        self,
        state_root: Path,
        store: Store,
        *,
        program: str = PROGRAM,
        obstacle: Callable[[], str | None] | None = None,
        find_kernel: Callable[[], Kernel] = find_kernel,
    ) -> None:
        """
        Args:
            program: a name on the PATH, or a path.
            obstacle: why no machine can run here, None if only a boot tells; unless given, what stands against KVM.
        """
        self._has_root = os.geteuid() == 0
        self.state_root = state_root
        self.program = program
        self._store, self._find_kernel = store, find_kernel
        self._obstacle = obstacle or partial(kvm_obstacle, has_other_uid=self._has_root)
        self._tag = root_tag(state_root)

    async def probe(self) -> ProbeResult:
        """Starts one, runs `true`, and ends it; never raises."""
        return await try_out(self, self.state_root, lambda: asyncio.to_thread(self._version))

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> FirecrackerMachine:
        """See `driver.Driver.start`; a template that is not there yet is made first.

        Raises:
            StartFailed: with the stage.
        """
        program = self._found()
        state = HomeState(home)
        state.record(driver=self.name, kind=self.kind)
        try:
            kernel = await asyncio.to_thread(self._kernel)
            hardware, digests = await asyncio.to_thread(
                collect_hardware, BOARD, Accelerator("kvm"), kernel, self._store, spec, home, snapshot
            )
            shape = saved_shape(hardware, digests) | {"machine": f"firecracker {_build(program)}"}
            template = await self._template(program, spec.limits, hardware, shape, snapshot)
            return await self._clone(program, spec, home, hardware, shape, template)
        except BaseException:
            await self.remove(home)
            raise

    async def adopt(self, spec: SandboxSpec, home: Path) -> FirecrackerMachine | None:
        """See `driver.Driver.adopt`."""
        found = HomeState(home).living(self.name)
        if found is None:
            return None
        state, process = found
        held = Held(group=self._group(home), uid=state.get("uid"), shape=state["shape"])
        return FirecrackerMachine(home, spec, self._store, process, held)

    async def remove(self, home: Path) -> None:
        """See `driver.Driver.remove`."""
        await end_machine(self._tag, home, NAME)
        await remove_machine(home, self._store, None, self._group(home), HomeState(home).load().get("uid"))

    async def reconcile(self, homes: Container[Path]) -> list[str]:
        """See `driver.Driver.reconcile`; also ends templates whose maker is gone."""
        gone = []
        for home in machine_homes(self, self.state_root, self._store, running(self._tag, NAME)):
            if home not in homes and not Templates.is_being_made(home.name):
                await self.remove(home)
                gone.append(f"virtual machine {home.name}")
        if self._has_root:
            gone += [f"host uid {uid}" for uid in UidPool().sweep(self.state_root)]
        return gone

    def _found(self) -> str:
        """The program's path, if machines may run here at all."""
        found = shutil.which(self.program)
        if found is None:
            raise StartFailed(
                f"no {self.program} program on the PATH; put it there from one of its releases, 1.8 or newer "
                "(no Debian package has it)",
                stage="probe",
            )
        if (obstacle := self._obstacle()) is not None:
            raise StartFailed(f"{found} is there, and KVM is not: {obstacle}", stage="probe")
        return found

    def _kernel(self) -> Kernel:
        """One that Firecracker can start and that init can be reached in."""
        kernel = self._find_kernel()
        if kernel.image.name != "vmlinux":
            raise StartFailed(
                f"{kernel.image} is packed, and Firecracker starts unpacked kernels alone; install lz4, remove "
                f"{kernel.image.parent}, and {HOW_TO_GET}",
                stage="kernel",
            )
        names = [module_name(path) for path in kernel.modules]
        if names and VSOCK_MODULE not in names:
            raise StartFailed(
                f"the kernel in {kernel.image.parent} was taken without {VSOCK_MODULE}, by which Firecracker's guests "
                f"are reached; remove that folder, and {HOW_TO_GET}",
                stage="kernel",
            )
        return kernel

    async def _template(
        self, program: str, limits: Limits, hardware: Hardware, shape: dict[str, Any], snapshot: SnapshotRef | None
    ) -> Path:
        """A folder with memory, state and disk of a machine that stands still."""
        if snapshot is None:
            made_of = (hardware.kernel, hardware.initramfs.parent.name, hardware.init_words, limits.disk_bytes)
            key = template_key(shape, made_of)
            return await made_once(self._store, key, shape["layers"], partial(self._boot, program, limits, hardware))
        saved = await asyncio.to_thread(read_snapshot, self._store, snapshot, shape, (MEMORY, STATE, UPPER))

        async def copy(draft: Path) -> None:
            # Each clone opens them under a uid of its own; the folder lets nobody else in.
            for path, name in zip(saved, (MEMORY, STATE, UPPER), strict=True):
                await asyncio.to_thread(copy_sparse, path, draft / name)

        return await made_once(
            self._store, template_key(shape, snapshot.layers), (*shape["layers"], *snapshot.layers), copy
        )

    async def _boot(self, program: str, limits: Limits, hardware: Hardware, draft: Path) -> None:
        """Boots until init answers, and saves the machine; nothing of a sandbox's runs in it."""
        await asyncio.to_thread(make_upper, draft / UPPER, limits)
        files = {"kernel": hardware.kernel, "initramfs": hardware.initramfs, **_disks(hardware, draft)}
        async with self._started(program, draft, files, Launch(), f"{self._tag}-{Templates.maker_name()}") as console:
            api = FirecrackerApi(draft / FOLDER, os.geteuid())
            await api.wait_ready(API_START_S)
            await api.boot(hardware)
            connect = partial(connect_vsock, draft / FOLDER / VSOCK, os.geteuid())
            try:
                guest = await Guest.attach(connect, timeout_s=BOOT_S)
            except GuestLost as error:
                words = console.last_words()
                raise StartFailed(
                    f"a virtual machine did not boot: {error}; it printed: {words}", stage="boot"
                ) from None
            await guest.close()
            await api.pause()
            await save(api, draft, os.geteuid(), draft)
        await asyncio.to_thread(remove_folder, draft)

    @asynccontextmanager
    async def _started(
        self, program: str, home: Path, files: dict[str, Path], launch: Launch, name: str
    ) -> AsyncIterator[Console]:
        process = start_firecracker(program, home, files, launch, name=name)
        console = Console(home)
        try:
            yield console
        finally:
            console.close()
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _clone(
        self, program: str, spec: SandboxSpec, home: Path, hardware: Hardware, shape: dict[str, Any], template: Path
    ) -> FirecrackerMachine:
        state = HomeState(home)
        uid = await asyncio.to_thread(UidPool().acquire, home) if self._has_root else None
        state.record(uid=uid, shape=shape)
        group = self._group(home)
        await asyncio.to_thread(copy_sparse, template / UPPER, home / UPPER)
        if uid is not None:
            os.chown(home / UPPER, uid, uid)
        if group is not None:
            group.create(replace(spec.limits, num_processes=VMM_THREADS), extra_memory_bytes=VMM_MEMORY_BYTES)
        files = {MEMORY: template / MEMORY, STATE: template / STATE, **_disks(hardware, home)}
        launch = Launch(group=group, uid=uid)
        process = start_firecracker(program, home, files, launch, name=f"{self._tag}-{home.name}")
        known = ProcessId.of(process.pid)
        if known is None:
            raise StartFailed(f"Firecracker ended at once: {Console(home).last_words()}", stage="start firecracker")
        state.record(pid=known.pid, start_ticks=known.start_ticks)
        machine = FirecrackerMachine(home, spec, self._store, known, Held(group=group, uid=uid, shape=shape))
        try:
            await self._wake(machine)
        except (OSError, SandboxError) as error:
            died = await machine.death()
            why = f"{error}; {died[1]}" if died else str(error)
            raise StartFailed(f"a clone of a virtual machine does not answer: {why}", stage="clone") from None
        return machine

    async def _wake(self, machine: FirecrackerMachine) -> None:
        """Loads a clone's state, lets it run, and gives it randomness and a clock of its own."""
        uid = os.geteuid() if machine.held.uid is None else machine.held.uid
        api = FirecrackerApi(machine.home / FOLDER, uid)
        await api.wait_ready(API_START_S)
        await api.load(STATE, MEMORY)
        guest = await Guest.attach(machine.connect)
        try:
            await guest.reseed(secrets.token_bytes(64), time.time())
        finally:
            await guest.close()

    def _group(self, home: Path) -> Cgroup | None:
        return Cgroup(find_hierarchy(), group_name(home)) if self._has_root else None

    def _version(self) -> str:
        """For people."""
        asked = subprocess.run([self._found(), "--version"], capture_output=True, text=True, check=False)
        return f"{asked.stdout.partition(chr(10))[0]}, KVM"


def firecracker_driver(state_root: Path, store: Store) -> FirecrackerDriver:
    """The driver of kind `microvm` that is tried first."""
    return FirecrackerDriver(state_root, store)


def _disks(hardware: Hardware, folder: Path) -> dict[str, Path]:
    layers = {f"layer{index}": path for index, path in enumerate(hardware.layers)}
    return {**layers, UPPER: folder / UPPER}


def _build(program: str) -> str:
    """What tells one Firecracker from another, as its saved states may fit no other."""
    path = Path(program).resolve()
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"
