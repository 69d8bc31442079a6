"""Brings up sandboxes, a bounded number at a time: what fails in a storm is what is half started.

A permit is held from before the driver is called until init has answered. A start has a budget of time in all, waiting
included, and one more try if the driver failed; its error says how long each stage took.
"""

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benthic.errors import SandboxError
from benthic.sandbox.driver import Driver, Machine
from benthic.sandbox.drivers.warm import WarmDriver
from benthic.sandbox.errors import GuestLost, NotSupported, StartFailed
from benthic.sandbox.guest import Guest
from benthic.sandbox.guest.records import JobSetup
from benthic.sandbox.records import Kind, SandboxSpec, SnapshotRef

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TRIES = 2


@dataclass(slots=True)
class Stages:
    """Seconds of each stage of one start."""

    seconds: dict[str, float] = field(default_factory=dict)
    last: str = ""
    _since: float = field(default_factory=time.monotonic)

    def begin(self, name: str) -> None:
        """The stage before it ends here."""
        self.end()
        self.last = name

    def end(self) -> None:
        """The stage ends here."""
        now = time.monotonic()
        if self.last:
            self.seconds[self.last] = round(self.seconds.get(self.last, 0.0) + now - self._since, 4)
        self._since = now

    def text(self) -> str:
        """For an error."""
        return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())


@dataclass(frozen=True, slots=True)
class Started:
    """A sandbox that answers."""

    machine: Machine
    guest: Guest
    seconds: dict[str, float]


class Starter:
    """The drivers of a host, behind one bound."""

    def __init__(self, drivers: Sequence[Driver], *, max_starting: int, budget_s: float) -> None:
        self.drivers = drivers
        self._permits = asyncio.Semaphore(max_starting)
        self._budget_s = budget_s
        self._chosen: dict[str, Driver] = {}

    def open(self) -> None:
        """Lets drivers keep machines ready, where they do."""
        for driver in self.drivers:
            if isinstance(driver, WarmDriver):
                driver.open()

    async def leave(self) -> None:
        """Ends the machines that are kept ready."""
        for driver in self.drivers:
            if isinstance(driver, WarmDriver):
                await driver.leave()

    def named(self, kind: Kind, name: str) -> Driver | None:
        """The driver of that kind and name."""
        return next((driver for driver in self.drivers if (driver.kind, driver.name) == (kind, name)), None)

    async def choose(self, spec: SandboxSpec) -> Driver:
        """The driver that a spec asks for: by name, else the first of its kind that works.

        The last of a kind is taken untried, since its start will say the same as a try of it, at half the price.

        Raises:
            NotSupported: there is none.
        """
        candidates = [driver for driver in self.drivers if driver.kind == spec.kind]
        if spec.driver is not None:
            candidates = [driver for driver in candidates if driver.name == spec.driver]
        if spec.kind in self._chosen and spec.driver is None:
            return self._chosen[spec.kind]
        for driver in candidates:
            if driver is candidates[-1] or (await driver.probe()).is_working:
                if spec.driver is None:
                    self._chosen[spec.kind] = driver
                return driver
        asked = f"kind {spec.kind}" + (f", driver {spec.driver}" if spec.driver else "")
        known = ", ".join(f"{driver.kind}/{driver.name}" for driver in self.drivers) or "none"
        raise NotSupported(f"this host cannot make {asked}: it has {known}")

    async def start(
        self, driver: Driver, spec: SandboxSpec, home: Path, snapshot: SnapshotRef | None = None
    ) -> Started:
        """A sandbox whose init has answered and knows what holds for its commands.

        Raises:
            StartFailed: with the stage that failed; nothing is left behind.
        """
        stages = Stages()
        stages.begin("queue")
        try:
            async with asyncio.timeout(self._budget_s), self._permits:
                return await self._tried(driver, spec, home, snapshot, stages)
        except TimeoutError:
            stages.end()
            raise StartFailed(
                f"{driver.kind} by {driver.name} was not up after {self._budget_s:.0f} s ({stages.text()}); "
                "start fewer at once, or see whether the machine is overloaded",
                stage=stages.last,
            ) from None

    async def _tried(
        self, driver: Driver, spec: SandboxSpec, home: Path, snapshot: SnapshotRef | None, stages: Stages
    ) -> Started:
        for remaining in reversed(range(TRIES)):
            try:
                return await self._started(driver, spec, home, snapshot, stages)
            except StartFailed as error:
                if not remaining:
                    stages.end()
                    raise StartFailed(f"{error} ({stages.text()})", stage=error.stage or stages.last) from error
        raise AssertionError("the last try returns or raises")

    async def _started(
        self, driver: Driver, spec: SandboxSpec, home: Path, snapshot: SnapshotRef | None, stages: Stages
    ) -> Started:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o700)
        machine: Machine | None = None
        guest: Guest | None = None
        try:
            stages.begin("driver")
            machine = await driver.start(spec, home, snapshot=snapshot)
            stages.begin("init")
            guest = await attached(machine)
            await configure(guest, machine, spec)
            await machine.open_network(guest, spec.network)
            stages.end()
            return Started(machine, guest, stages.seconds)
        except BaseException as error:
            if guest is not None:
                await guest.close()
            if machine is not None:
                await machine.destroy()
            shutil.rmtree(home, ignore_errors=True)
            if isinstance(error, GuestLost):
                raise StartFailed(f"{driver.kind} by {driver.name}: {error}", stage="init") from error
            if isinstance(error, OSError):
                raise StartFailed(f"{driver.kind} by {driver.name}: {error}", stage=stages.last) from error
            raise


async def attached(machine: Machine) -> Guest:
    """Init's client. Once the driver knows of a death, nobody waits for a greeting."""

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        try:
            return await machine.connect()
        except OSError:
            death = await machine.death()
            if death is not None:
                raise GuestLost(f"{death[0]}: {death[1]}") from None
            raise

    return await Guest.attach(connect)


async def configure(guest: Guest, machine: Machine, spec: SandboxSpec) -> None:
    """Tells init what holds for commands: the driver's share and the spec's."""
    setup = full_setup(machine.setup, spec)
    await guest.configure(setup)
    if spec.cwd not in ("/", "/work", "/tmp"):
        try:
            await guest.files.make_folder(spec.cwd)
        except GuestLost:
            raise
        except SandboxError as error:
            raise StartFailed(f"cwd {spec.cwd!r} cannot be made: {error}", stage="init") from error


def full_setup(setup: JobSetup, spec: SandboxSpec) -> JobSetup:
    """A driver's setup with the environment, folder and output of a spec."""
    env = {"PATH": PATH, "HOME": "/work", "USER": "user", "LANG": "C.UTF-8", **dict(setup.env), **dict(spec.env)}
    return replace(setup, env=tuple(env.items()), cwd=spec.cwd, output_bytes=spec.limits.output_bytes)
