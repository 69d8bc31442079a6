"""Clones woken ahead of their use: a start that finds one ready takes it over, and another is woken behind it.

Most of a clone's start is its waking up and its first command (translated anew, where there is no KVM), the same for
every sandbox. So that much is done before anybody asks: a clone that is kept ready has run nothing but our own empty
command. It belongs to nobody: its home is named after the process that keeps it, and is swept once that has ended.

Law: of `count` clones there is one for each of the last `count` starts, made of the same; none is older than its wish.
"""

import asyncio
import logging
import shutil
from collections import Counter, deque
from collections.abc import Callable, Container, Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benthic.errors import BenthicError, SandboxError
from benthic.sandbox.driver import Driver, Machine
from benthic.sandbox.drivers.templates import run_nothing
from benthic.sandbox.drivers.trial import warm_home
from benthic.sandbox.guest import Guest
from benthic.sandbox.records import MIB, Kind, ProbeResult, SandboxSpec, SnapshotRef

_log = logging.getLogger(__name__)

SPARE_BYTES = 512 * MIB
"""Must stay free beside a whole clone: none is woken ahead on a machine that is short of memory."""
_PAUSE_S = 0.05


class Clones(Driver, Protocol):
    """A driver whose machines may change their home."""

    async def likeness(self, spec: SandboxSpec) -> Hashable:
        """Equal for specs whose machines are interchangeable until their first command.

        Raises:
            SandboxError: nothing can be made of it.
        """

    async def hand_over(self, ready: Path, spec: SandboxSpec, home: Path) -> Machine:
        """Gives the machine of one home another one, an empty folder.

        Raises:
            StartFailed: it cannot be had; nothing of it is in the new home.
        """


@dataclass(frozen=True, slots=True)
class Ready:
    """A clone that waits to be taken."""

    like: Hashable
    spec: SandboxSpec
    machine: Machine


class WarmDriver:
    """See `driver.Driver`: another one, with clones of it kept ready."""

    def __init__(self, inner: Clones, state_root: Path, count: int, *, free_memory: Callable[[], int]) -> None:
        """
        Args:
            inner: makes the clones.
            count: kept ready at most, all in all.
            free_memory: of the host, in bytes, now.
        """
        assert count > 0
        self._inner, self._homes, self._free_memory = inner, state_root / "homes", free_memory
        self._asked: deque[tuple[Hashable, SandboxSpec]] = deque(maxlen=count)
        self._ready: list[Ready] = []
        self._num_starting = 0
        self._filling: asyncio.Task[None] | None = None
        self._has_left = True

    @property
    def kind(self) -> Kind:
        """What it makes."""
        return self._inner.kind

    @property
    def name(self) -> str:
        """Its own among those of its kind."""
        return self._inner.name

    @property
    def ready(self) -> list[SandboxSpec]:
        """What the clones are made of that are ready now; the host has promised this much to nobody."""
        return [clone.spec for clone in self._ready]

    async def probe(self) -> ProbeResult:
        """See `driver.Driver.probe`."""
        return await self._inner.probe()

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> Machine:
        """See `driver.Driver.start`; by a clone that is ready, if there is one."""
        if snapshot is not None:
            return await self._inner.start(spec, home, snapshot=snapshot)
        like = await self._inner.likeness(spec)
        self._asked.append(
            (like, SandboxSpec(kind=spec.kind, image=spec.image, layers=spec.layers, limits=spec.limits))
        )
        self._num_starting += 1
        try:
            return await self._taken(like, spec, home) or await self._inner.start(spec, home)
        finally:
            self._num_starting -= 1
            self._fill_up()

    async def adopt(self, spec: SandboxSpec, home: Path) -> Machine | None:
        """See `driver.Driver.adopt`."""
        return await self._inner.adopt(spec, home)

    async def remove(self, home: Path) -> None:
        """See `driver.Driver.remove`."""
        await self._inner.remove(home)

    async def reconcile(self, homes: Container[Path]) -> list[str]:
        """See `driver.Driver.reconcile`."""
        return await self._inner.reconcile(homes)

    def open(self) -> None:
        """From now on clones are woken, until `leave`."""
        self._has_left = False

    async def leave(self) -> None:
        """Ends what is ready and wakes no more."""
        self._has_left = True
        if self._filling is not None:
            await self._filling
        while self._ready:
            await self._end(self._ready.pop())

    async def _taken(self, like: Hashable, spec: SandboxSpec, home: Path) -> Machine | None:
        while clone := next((clone for clone in self._ready if clone.like == like), None):
            self._ready.remove(clone)
            with suppress(SandboxError):
                if await clone.machine.death() is None:
                    return await self._inner.hand_over(clone.machine.home, spec, home)
            await self._end(clone)
            home.mkdir(mode=0o700, exist_ok=True)
        return None

    def _fill_up(self) -> None:
        if not self._has_left and (self._filling is None or self._filling.done()):
            self._filling = asyncio.create_task(self._fill(), name="warm clones")

    async def _fill(self) -> None:
        """What fails is not tried again before the next start."""
        try:
            while not self._has_left and (wish := await self._next_wish()) is not None:
                like, spec = wish
                if self._free_memory() < spec.limits.memory_bytes + SPARE_BYTES:
                    return
                clone = await self._woken(like, spec)
                if await self._inner.likeness(spec) != like:  # its image has got another meaning
                    await self._end(clone)
                    return
                self._ready.append(clone)
        except (BenthicError, OSError, LookupError) as error:
            _log.warning("no clone of a %s is ready: %s", self.kind, error)

    async def _next_wish(self) -> tuple[Hashable, SandboxSpec] | None:
        """What is to be woken next, once nobody starts anything and what nobody wishes for any more is ended."""
        while self._num_starting and not self._has_left:
            await asyncio.sleep(_PAUSE_S)
        wished = Counter(like for like, _ in self._asked)
        for clone in list(self._ready):
            if wished[clone.like] <= 0:
                self._ready.remove(clone)
                await self._end(clone)
            wished[clone.like] -= 1
        return next((wish for wish in self._asked if wished[wish[0]] > 0), None)

    async def _woken(self, like: Hashable, spec: SandboxSpec) -> Ready:
        home = self._homes / warm_home()
        home.mkdir(mode=0o700, parents=True)
        try:
            machine = await self._inner.start(spec, home)
            clone = Ready(like, spec, machine)
            guest = await Guest.attach(machine.connect)
            try:
                await run_nothing(guest)
            finally:
                await guest.close()
        except BaseException:
            await self._inner.remove(home)
            shutil.rmtree(home, ignore_errors=True)
            raise
        return clone

    async def _end(self, clone: Ready) -> None:
        with suppress(SandboxError):  # the next sweep ends it
            await clone.machine.destroy()
            await asyncio.to_thread(shutil.rmtree, clone.machine.home, True)
