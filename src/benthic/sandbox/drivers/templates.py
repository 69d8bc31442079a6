"""Booted machines, kept as files, from which sandboxes are cloned.

    derived/<key>/memory        the guest's memory; clones map it privately, so they share what they do not write
                  state         its processor and devices
                  upper         the disk that it writes; empty.qcow2 is where a clone's changes go, if it is a qcow2
                  layers.json   what it stands on, for the store's collection

A template is made by booting, or from a snapshot, when the first sandbox asks for it; then it never changes. The key
is a hash of everything that the files depend on. It is a cache: whoever removes a folder costs the next start a boot.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import uuid4

from benthic.errors import SandboxError
from benthic.sandbox.drivers.disks import copy_sparse, empty_overlay, make_upper, to_qcow2
from benthic.sandbox.drivers.qemu_command import Hardware
from benthic.sandbox.drivers.qemu_process import CONTROL, PORT, connect_port, last_words, start_qemu
from benthic.sandbox.drivers.qmp import QmpError, qmp
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import Guest, JobSetup
from benthic.sandbox.images import Store
from benthic.sandbox.images.derived import LAYERS
from benthic.sandbox.linux import Launch, ProcessId
from benthic.sandbox.records import Command, Limits

FORM = "warm 1"
"""How a template is made, beside what it is made of."""
BOOT_S = 30.0
NUM_TRIES = 3
SETTLE_S = 0.5
"""What a booted machine still does in the background it does once, and not in every clone."""
_WARM_JOB = "warm"
_MAKER = "template-"
MEMORY, STATE, UPPER, EMPTY = "memory", "state", "upper", "empty.qcow2"


@dataclass(frozen=True, slots=True)
class Saved:
    """The files of a snapshot that a template is made from."""

    memory: Path
    """QEMU's own stream: memory, processor and devices."""
    upper: Path


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of one store."""

    store: Store
    tag: str
    """Marks the processes of this state root."""

    async def ready(
        self, key: str, hardware: Hardware, limits: Limits, digests: Sequence[str], saved: Saved | None = None
    ) -> Path:
        """The folder of a template, made if it is not there. Concurrent callers wait for one maker.

        Args:
            digests: layers and, of a snapshot, its files; the caller holds them.

        Raises:
            StartFailed: it does not boot; nothing is left of the attempts.
        """
        return await made_once(self.store, key, digests, lambda draft: self._make(draft, hardware, limits, saved))

    @staticmethod
    def maker_name() -> str:
        """For a template's machine, made by this process."""
        maker = ProcessId.of(os.getpid())
        assert maker is not None
        return f"{_MAKER}{maker.mark}-{uuid4().hex[:8]}"

    @staticmethod
    def is_being_made(name: str) -> bool:
        """Whether this is the name of a template's machine whose maker lives."""
        maker = ProcessId.named(name.removeprefix(_MAKER)) if name.startswith(_MAKER) else None
        return maker is not None and maker.is_alive()

    async def boots(self, hardware: Hardware, limits: Limits, *, boot_s: float) -> bool:
        """Whether such a machine boots within that time; nothing of it is kept."""
        with self.store.incoming() as draft:
            await asyncio.to_thread(_prepare, draft, hardware, limits, None)
            async with _running(draft, hardware, self.tag) as home:
                with contextlib.suppress(SandboxError):
                    guest = await Guest.attach(partial(connect_port, home), timeout_s=boot_s)
                    await guest.close()
                    return True
        return False

    async def _make(self, draft: Path, hardware: Hardware, limits: Limits, saved: Saved | None) -> None:
        await asyncio.to_thread(_prepare, draft, hardware, limits, saved)
        if saved is None:
            await self._boot(draft, hardware)
        else:
            await _load_and_save(draft, hardware, saved, self.tag)
        for name in (PORT, CONTROL):
            (draft / name).unlink(missing_ok=True)

    async def _boot(self, draft: Path, hardware: Hardware) -> None:
        """Boots until init answers, again if a boot hangs, and saves the machine."""
        words = ""
        for _ in range(NUM_TRIES):
            async with _running(draft, hardware, self.tag) as home:
                try:
                    guest = await Guest.attach(partial(connect_port, home), timeout_s=BOOT_S)
                    await run_nothing(guest)
                    await asyncio.sleep(SETTLE_S)
                except SandboxError as error:
                    words = f"{error}; console: {await _console(home)}; QEMU: {last_words(home)}"
                    continue
                await guest.close()
                await save(home)
                return
        raise StartFailed(f"a virtual machine did not boot in {NUM_TRIES} tries of {BOOT_S} s: {words}", stage="boot")


async def made_once(store: Store, key: str, digests: Sequence[str], make: Callable[[Path], Awaitable[None]]) -> Path:
    """The folder of a template, made if it is not there. Concurrent callers, other processes' too, wait for one maker.

    Args:
        digests: what it stands on; the caller holds it.
        make: fills the folder that it is given, or raises and leaves nothing.
    """
    folder = store.root / "derived" / key
    if folder.exists():
        return folder
    async with _alone(store, key):
        if not folder.exists():
            with store.incoming() as draft:
                await make(draft)
                (draft / LAYERS).write_text(json.dumps(list(digests)))
                draft.rename(folder)
    return folder


@asynccontextmanager
async def _alone(store: Store, key: str) -> AsyncIterator[None]:
    """Among all coroutines and processes of the host that make this template."""
    locks = store.root / "locks"
    locks.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(locks / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        await asyncio.to_thread(fcntl.flock, handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def template_key(*parts: object) -> str:
    """A name for what a template depends on."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


async def save(home: Path) -> None:
    """Stops a template's machine, writes its state beside its memory, and ends it."""
    async with qmp(home / CONTROL) as control:
        await control.execute("stop")
        await control.ignore_shared_memory(True)
        await control.migrate_to(home / STATE)


async def run_nothing(guest: Guest) -> None:
    """Runs a command, so that shell and libraries lie in memory already, and what they need is translated."""
    await guest.configure(JobSetup(env=(("PATH", "/usr/bin:/bin"),)))
    await guest.run(_WARM_JOB, Command(argv=("sh", "-c", ":"), timeout_s=BOOT_S))  # an image need not have a shell
    await guest.forget(_WARM_JOB)


@asynccontextmanager
async def _running(draft: Path, hardware: Hardware, tag: str, *, is_clone: bool = False) -> AsyncIterator[Path]:
    """A template's QEMU; nothing of the sandbox's runs in it, so it needs no group and no uid of its own."""
    files = {MEMORY: draft / MEMORY, UPPER: draft / UPPER}
    files |= {f"layer{index}": path for index, path in enumerate(hardware.layers)}
    files |= {"kernel": hardware.kernel, "initramfs": hardware.initramfs}
    if hardware.board.disk_format == "qcow2":
        files["base"] = draft / EMPTY  # never read: the template's own disk stands alone
    name = f"{tag}-{Templates.maker_name()}"
    process = start_qemu(hardware, draft, files, Launch(), name=name, is_template=True, is_clone=is_clone)
    try:
        yield draft
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


def _prepare(draft: Path, hardware: Hardware, limits: Limits, saved: Saved | None) -> None:
    with (draft / MEMORY).open("wb") as file:
        file.truncate(hardware.memory_mib << 20)
    is_qcow2 = hardware.board.disk_format == "qcow2"
    if saved is not None:
        copy_sparse(saved.upper, draft / UPPER)
    elif is_qcow2:
        make_upper(draft / "raw", limits)
        to_qcow2(draft / "raw", draft / UPPER)
        (draft / "raw").unlink()
    else:
        make_upper(draft / UPPER, limits)
    if is_qcow2:
        empty_overlay(draft / UPPER, draft / EMPTY)
    # Each clone runs under a uid of its own and has these as open descriptors; the folder lets nobody else in.
    (draft / MEMORY).chmod(0o666)


async def _load_and_save(draft: Path, hardware: Hardware, saved: Saved, tag: str) -> None:
    async with _running(draft, hardware, tag, is_clone=True) as home:
        try:
            async with qmp(home / CONTROL) as control:
                await control.migrate_from(saved.memory)
        except (OSError, QmpError) as error:
            raise StartFailed(f"a snapshot cannot be loaded: {error}; {last_words(home)}", stage="load") from None
        await save(home)


async def _console(home: Path) -> str:
    try:
        async with qmp(home / CONTROL) as control:
            text: str = await control.execute("ringbuf-read", device="console", size=1 << 16)
    except (OSError, QmpError) as error:
        return str(error)
    return text.strip()[-600:]
