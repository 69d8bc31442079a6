"""Virtual machines by QEMU: `microvm.py` and `vm.py` are two boards of this one driver.

A sandbox is a clone of a booted machine (`templates.py`): QEMU starts with the template's memory mapped privately and
its state loaded, and init answers a moment later, with randomness and a clock of its own.
"""

import asyncio
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Container, Hashable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benthic.errors import SandboxError
from benthic.sandbox.boot import find_kernel
from benthic.sandbox.drivers.accelerator import Accelerator, kvm_obstacle, tcg
from benthic.sandbox.drivers.disks import copy_sparse
from benthic.sandbox.drivers.guest_hardware import collect_hardware, machine_name, saved_shape
from benthic.sandbox.drivers.lost_machines import end_machine, machine_homes
from benthic.sandbox.drivers.machine_snapshot import read_snapshot
from benthic.sandbox.drivers.qemu_command import KERNEL_WORDS, PROGRAM, Board, Hardware
from benthic.sandbox.drivers.qemu_machine import QemuMachine, Resources, remove_resources
from benthic.sandbox.drivers.qemu_process import CONTROL, connect_port, identity, last_words, running, start_qemu
from benthic.sandbox.drivers.qmp import QmpError, qmp
from benthic.sandbox.drivers.templates import EMPTY, FORM, MEMORY, STATE, UPPER, Saved, Templates, template_key
from benthic.sandbox.drivers.trial import trial_home
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store, chosen_layers
from benthic.sandbox.linux import Cgroup, HomeState, Launch, UidPool, find_hierarchy, group_name, root_tag
from benthic.sandbox.records import MIB, Kind, Limits, ProbeResult, SandboxSpec, SnapshotRef

QEMU_MEMORY_BYTES = 256 * MIB
"""Allowed on top of the guest's, for the emulator, its translated code and its disks' caches."""
QEMU_PROCESSES = 160
"""Threads of QEMU; those of the guest are limited inside."""
CLONE_S = 20.0
KVM_BOOT_S = 3.0
PROBE_LIMITS = Limits(memory_bytes=128 * MIB, disk_bytes=32 * MIB, num_files=1000)


class QemuDriver:
    """See `driver.Driver`. Root gives each machine a control group and a host uid; others run it as themselves."""

    def __init__(self, board: Board, state_root: Path, store: Store) -> None:
        self.kind: Kind = board.kind
        self.name = board.name
        self.state_root = state_root
        self._board, self._store = board, store
        self._tag = root_tag(state_root)
        self._templates = Templates(store, self._tag)
        self._has_root = os.geteuid() == 0
        self._accelerator: Accelerator | None = None

    async def probe(self) -> ProbeResult:
        """Starts one by cloning a machine that it boots first, if need be."""
        began = time.monotonic()
        try:
            home = self.state_root / "homes" / trial_home()
            home.mkdir(mode=0o700, parents=True)
            try:
                machine = await self.start(SandboxSpec(kind=self.kind, limits=PROBE_LIMITS), home)
                took_s = time.monotonic() - began
                await machine.destroy()
            finally:
                shutil.rmtree(home)
        except (SandboxError, OSError) as error:
            return ProbeResult(kind=self.kind, driver=self.name, is_working=False, detail=str(error))
        assert self._accelerator is not None
        obstacle = kvm_obstacle(has_other_uid=self._has_root)
        detail = f"{_version()}, {self._accelerator.describe()}{f' ({obstacle})' if obstacle else ''}"
        return ProbeResult(kind=self.kind, driver=self.name, is_working=True, detail=detail, start_s=took_s)

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> QemuMachine:
        """See `driver.Driver.start`; a template that is not there yet is made first, which takes seconds.

        Raises:
            NotSupported: no kernel on this machine.
            StartFailed: with the stage.
        """
        state = HomeState(home)
        state.record(driver=self.name, kind=self.kind, name=home.name)
        try:
            hardware, digests = await self._hardware(spec, home, snapshot)
            hardware = await self._accelerated(hardware, spec.limits)
            shape = saved_shape(hardware, digests)
            folder = await self._template(spec, hardware, shape, snapshot)
            return await self._clone(spec, home, hardware, shape, folder)
        except BaseException:
            await self.remove(home)
            raise

    async def adopt(self, spec: SandboxSpec, home: Path) -> QemuMachine | None:
        """See `driver.Driver.adopt`."""
        found = HomeState(home).living(self.name)
        if found is None:
            return None
        state, process = found
        base = Path(state["base"]) if "base" in state else None
        resources = Resources(group=self._group(home), uid=state.get("uid"), shape=state["shape"], base=base)
        return QemuMachine(home, spec, self._store, process, resources)

    async def likeness(self, spec: SandboxSpec) -> Hashable:
        """See `warm.Clones`."""
        return await asyncio.to_thread(chosen_layers, self._store, spec.image, spec.layers), spec.limits

    async def hand_over(self, ready: Path, spec: SandboxSpec, home: Path) -> QemuMachine:
        """See `warm.Clones`. Until the folder is renamed all is the old home's, and from then on all the new one's."""
        uid = HomeState(ready).load().get("uid")
        try:
            if uid is not None:
                UidPool().move(uid, ready, home)
            ready.rename(home)
        except (LookupError, OSError) as error:
            raise StartFailed(f"a machine that was ready cannot be taken: {error}", stage="hand over") from None
        machine = await self.adopt(spec, home)
        if machine is None:
            await self.remove(home)
            raise StartFailed("a machine that was ready has ended", stage="hand over")
        return machine

    async def remove(self, home: Path) -> None:
        """See `driver.Driver.remove`."""
        await end_machine(self._tag, home)
        await remove_resources(home, self._store, None, self._group(home), HomeState(home).load().get("uid"))

    async def reconcile(self, homes: Container[Path]) -> list[str]:
        """See `driver.Driver.reconcile`; also ends templates whose maker is gone."""
        gone = []
        for home in machine_homes(self, self.state_root, self._store, running(self._tag)):
            if home not in homes and not Templates.is_being_made(home.name):
                await self.remove(home)
                gone.append(f"virtual machine {home.name}")
        if self._has_root:
            gone += [f"host uid {uid}" for uid in UidPool().sweep(self.state_root)]
        return gone

    async def _accelerated(self, hardware: Hardware, limits: Limits) -> Hardware:
        """Chooses how this host runs guests, when the first one is asked for: only a boot tells."""
        if self._accelerator is None:
            chosen = Accelerator("kvm")
            is_possible = kvm_obstacle(has_other_uid=self._has_root) is None
            trial = replace(hardware, accelerator=chosen)
            if not is_possible or not await self._templates.boots(trial, limits, boot_s=KVM_BOOT_S):
                chosen = await asyncio.to_thread(tcg)
            self._accelerator = chosen
        return replace(hardware, accelerator=self._accelerator)

    async def _hardware(
        self, spec: SandboxSpec, home: Path, snapshot: SnapshotRef | None
    ) -> tuple[Hardware, tuple[str, ...]]:
        if shutil.which(PROGRAM) is None:
            raise StartFailed(f"there is no {PROGRAM} on this machine; install qemu-system-x86", stage="probe")
        accelerator = self._accelerator or Accelerator("tcg")
        kernel = await asyncio.to_thread(find_kernel)
        return await asyncio.to_thread(
            collect_hardware, self._board, accelerator, kernel, self._store, spec, home, snapshot
        )

    async def _template(
        self, spec: SandboxSpec, hardware: Hardware, shape: dict[str, Any], snapshot: SnapshotRef | None
    ) -> Path:
        limits = spec.limits
        if snapshot is None:
            made_of = (
                FORM,
                KERNEL_WORDS,
                hardware.kernel,
                hardware.initramfs.parent.name,
                limits.disk_bytes,
                limits.num_files,
                limits.num_processes,
            )
            key = template_key(_build(), shape, made_of)
            return await self._templates.ready(key, hardware, limits, shape["layers"])
        memory, upper = await asyncio.to_thread(read_snapshot, self._store, snapshot, shape, (MEMORY, UPPER))
        saved = Saved(memory, upper)
        digests = (*shape["layers"], *snapshot.layers)
        key = template_key(_build(), shape, snapshot.layers)
        return await self._templates.ready(key, hardware, limits, digests, saved)

    async def _clone(
        self, spec: SandboxSpec, home: Path, hardware: Hardware, shape: dict[str, Any], template: Path
    ) -> QemuMachine:
        state = HomeState(home)
        is_overlay = hardware.board.disk_format == "qcow2"
        base = template / UPPER if is_overlay else None
        uid = await asyncio.to_thread(UidPool().acquire, home) if self._has_root else None
        state.record(uid=uid, shape=shape, base=str(base) if base else None)
        group = self._group(home)
        copy_sparse(template / (EMPTY if is_overlay else UPPER), home / UPPER)
        if uid is not None:
            os.chown(home / UPPER, uid, uid)
        if group is not None:
            group.create(replace(spec.limits, num_processes=QEMU_PROCESSES), extra_memory_bytes=QEMU_MEMORY_BYTES)
        files = {MEMORY: template / MEMORY, UPPER: home / UPPER}
        files |= {f"layer{index}": path for index, path in enumerate(hardware.layers)}
        if base is not None:
            files["base"] = base
        launch, name = Launch(group=group, uid=uid), f"{self._tag}-{home.name}"
        process = start_qemu(hardware, home, files, launch, name=name, is_clone=True)
        known = identity(process, home)
        state.record(pid=known.pid, start_ticks=known.start_ticks)
        await _wake(home, template)
        resources = Resources(group=group, uid=uid, shape=shape, base=base)
        return QemuMachine(home, spec, self._store, known, resources)

    def _group(self, home: Path) -> Cgroup | None:
        return Cgroup(find_hierarchy(), group_name(home.with_name(machine_name(home)))) if self._has_root else None


async def _wake(home: Path, template: Path) -> None:
    """Loads a clone's state, lets it run, and gives it randomness and a clock of its own."""
    try:
        async with qmp(home / CONTROL) as control:
            await control.ignore_shared_memory(True)
            await control.migrate_from(template / STATE)
            await control.execute("cont")
        guest = await Guest.attach(partial(connect_port, home), timeout_s=CLONE_S)
        try:
            await guest.reseed(secrets.token_bytes(64), time.time())
        finally:
            await guest.close()
    except (OSError, QmpError, SandboxError) as error:
        raise StartFailed(
            f"a clone of a virtual machine does not answer: {error}; {last_words(home)}", stage="clone"
        ) from None


def _build() -> str:
    """What tells one QEMU from another, as its saved states fit no other."""
    path = Path(shutil.which(PROGRAM) or PROGRAM).resolve()
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _version() -> str:
    """For people."""
    with suppress(OSError, IndexError):
        asked = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=False)
        return asked.stdout.splitlines()[0]
    return "no QEMU"
