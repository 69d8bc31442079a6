"""What the benches of functions and containers share: a line of JSON a case, starts, many at once, a burst."""

import asyncio
import json
import os
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benthic.sandbox.driver import Driver, Machine
from benthic.sandbox.guest import Guest
from benthic.sandbox.records import Command, SandboxSpec

TRUE = Command(argv=("true",))
AT_ONCE = 4
"""Starts in flight: on two cores more of them only wait for each other."""


class Bench:
    """One driver under measurement; what it makes lies below one folder."""

    def __init__(self, driver: Driver, homes: Path) -> None:
        self.driver, self.homes = driver, homes

    async def make(self) -> Machine:
        """A new sandbox."""
        home = self.homes / secrets.token_hex(6)
        home.mkdir(parents=True)
        return await self.driver.start(SandboxSpec(kind=self.driver.kind), home)

    async def first_result(self, made: list[Machine]) -> None:
        """A new sandbox that has run `true`."""
        machine = await self.make()
        made.append(machine)
        assert await ran(machine)

    async def starts(self, count: int) -> list[Machine]:
        """So many one after the other, all of which stay."""
        made: list[Machine] = []
        self.show("create to first result", [await timed(lambda: self.first_result(made)) for _ in range(count)])
        return made

    async def alive(self, count: int) -> None:
        """So many at once: how fast they are made, what each costs in memory, whether each answers."""
        before, began = available_bytes(), time.perf_counter()
        machines = await together(count, self.make)
        made_s, used = time.perf_counter() - began, before - available_bytes()
        answered = sum([await ran(machine) for machine in machines])
        ended_s = await timed(lambda: end(machines))
        facts = {"answered": answered, "created_per_s": count / made_s, "host_mib_each": used / count / 2**20}
        self.show(f"{count} alive", None, **facts, end_s=ended_s)

    async def burst(self, count: int) -> None:
        """So many asked for in one moment, each ended when all have answered."""
        made: list[Machine] = []
        failures: list[str] = []

        async def once() -> float:
            try:
                return await timed(lambda: self.first_result(made))
            except Exception as error:  # noqa: BLE001 - counted
                failures.append(str(error))
                return 0.0

        began = time.perf_counter()
        seconds = await together(count, once)
        facts = {"took_s": time.perf_counter() - began, "failures": len(failures), "first_failure": failures[:1]}
        self.show(f"burst of {count}", seconds, **facts)
        await end(made)

    def show(self, case: str, seconds: Sequence[float] | None, **facts: object) -> None:
        """One line of this driver's."""
        show(self.driver.name, case, seconds, **facts)


async def ran(machine: Machine) -> bool:
    """Whether `true` runs in it."""
    guest = await Guest.attach(machine.connect, timeout_s=60)
    await guest.configure(machine.setup)
    result = await guest.run("first", TRUE)
    await guest.close()
    return result.returncode == 0


async def end(machines: Sequence[Machine]) -> None:
    """Ends them all."""

    async def one(machine: Machine) -> None:
        await machine.destroy()
        shutil.rmtree(machine.home)

    await asyncio.gather(*map(one, machines))


async def together(count: int, work: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Calls so many times, a few at once."""
    permits = asyncio.Semaphore(AT_ONCE)

    async def one() -> Any:
        async with permits:
            return await work()

    return await asyncio.gather(*(one() for _ in range(count)))


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    """Seconds that it took."""
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def times(count: int, work: Callable[[], object]) -> list[float]:
    """Seconds of each of so many calls."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def available_bytes() -> int:
    """Memory that the machine could still give."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def show(system: str, case: str, seconds: Sequence[float] | None, **facts: object) -> None:
    """One line of JSON; times in milliseconds. `load` is the machine's load average by then."""
    line: dict[str, object] = {"system": system, "case": case, "load": round(os.getloadavg()[0], 1)}
    if seconds:
        ordered = sorted(seconds)
        line |= {"n": len(ordered), "p50_ms": round(ordered[len(ordered) // 2] * 1000, 2)}
        line |= {"min_ms": round(ordered[0] * 1000, 2), "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 2)}
    line |= {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps(line), flush=True)
