"""Function sandboxes: calls in a warm Python, create to first result, a thousand alive at once, a burst of creates.

    sudo python benchmarks/sandbox/bench_function.py [--calls 300] [--starts 30] [--alive 1000] [--burst 300]

One line of JSON a measurement. Beside them a fresh Python in a plain subprocess, which guards against nothing. `load`
is the machine's load average when a case ended: times of a machine that is busy with other work say little.
"""

import argparse
import asyncio
import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benthic.sandbox.drivers.function import FunctionDriver
from benthic.sandbox.drivers.function_machine import FunctionMachine
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.records import Command, FunctionCall, SandboxSpec

SPEC = SandboxSpec(kind="function")
SQUARE = FunctionCall(source="def square(x):\n    return x * x", name="square", args=(7,))
AT_ONCE = 4
"""Starts in flight: on two cores more of them only wait for each other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("calls", 300), ("starts", 30), ("alive", 1000), ("burst", 300)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("control groups and host uids need root: run with sudo")
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with tempfile.TemporaryDirectory() as folder:
        driver = FunctionDriver(Path(folder), Store(Path(folder) / "store"))
        asyncio.run(measure(driver, Path(folder) / "homes", options))
    python = shutil.which("python3", path="/usr/bin") or sys.executable
    began = [time.perf_counter()]
    for _ in range(options.starts):
        subprocess.run([python, "-I", "-c", "print(7 * 7)"], check=True, stdout=subprocess.DEVNULL)
        began.append(time.perf_counter())
    show("a fresh Python in a subprocess", [after - before for before, after in zip(began, began[1:], strict=False)])


async def measure(driver: FunctionDriver, homes: Path, options: argparse.Namespace) -> None:
    probed = await driver.probe()
    if not probed.is_working:
        sys.exit(probed.detail)
    machine = await make(driver, homes)
    show("first call, which starts the warm Python", [await timed(lambda: machine.call(SQUARE))])
    show("call", [await timed(lambda: call(machine)) for _ in range(options.calls)])
    began = time.perf_counter()
    await together(options.calls, lambda: call(machine))
    show(f"calls, {AT_ONCE} at once", None, per_s=options.calls / (time.perf_counter() - began))
    await end([machine])
    firsts: list[FunctionMachine] = []
    show("create to first result", [await timed(lambda: first(driver, homes, firsts)) for _ in range(options.starts)])
    show("destroy", [await timed(lambda m=m: end([m])) for m in firsts])  # type: ignore[misc]
    await burst(driver, homes, options.burst)
    await alive(driver, homes, options.alive)


async def alive(driver: FunctionDriver, homes: Path, count: int) -> None:
    """So many at once: how fast they are made, what each costs in memory, whether each answers."""
    before, began = available_bytes(), time.perf_counter()
    machines = await together(count, lambda: make(driver, homes))
    made_s, used = time.perf_counter() - began, before - available_bytes()
    answered = sum([await first_command(machine) for machine in machines])
    ended_s = await timed(lambda: end(machines))
    facts = {"answered": answered, "created_per_s": count / made_s, "host_mib_each": used / count / 2**20}
    show(f"{count} alive", None, **facts, end_s=ended_s)


async def burst(driver: FunctionDriver, homes: Path, count: int) -> None:
    """So many asked for in one moment, each ended when all have answered."""
    made: list[FunctionMachine] = []
    failures: list[str] = []

    async def once() -> float:
        try:
            return await timed(lambda: first(driver, homes, made))
        except Exception as error:  # noqa: BLE001 - counted
            failures.append(str(error))
            return 0.0

    began = time.perf_counter()
    seconds = await asyncio.gather(*(once() for _ in range(count)))
    facts = {"took_s": time.perf_counter() - began, "failures": len(failures), "first_failure": failures[:1]}
    show(f"burst of {count}", seconds, **facts)
    await end(made)


async def make(driver: FunctionDriver, homes: Path) -> FunctionMachine:
    home = homes / secrets.token_hex(6)
    home.mkdir(parents=True)
    return await driver.start(SPEC, home)


async def first(driver: FunctionDriver, homes: Path, made: list[FunctionMachine]) -> None:
    machine = await make(driver, homes)
    made.append(machine)
    assert await first_command(machine)


async def first_command(machine: FunctionMachine) -> bool:
    guest = await Guest.attach(machine.connect, timeout_s=60)
    await guest.configure(machine.setup)
    result = await guest.run("first", Command(argv=("true",)))
    await guest.close()
    return result.returncode == 0


async def call(machine: FunctionMachine) -> None:
    result = await machine.call(SQUARE)
    assert result.value == 49, result


async def end(machines: Sequence[FunctionMachine]) -> None:
    async def one(machine: FunctionMachine) -> None:
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
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def available_bytes() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def show(case: str, seconds: Sequence[float] | None, **facts: object) -> None:
    """One line of JSON; times in milliseconds."""
    line: dict[str, object] = {"system": "function", "case": case, "load": round(os.getloadavg()[0], 1)}
    if seconds:
        ordered = sorted(seconds)
        line |= {"n": len(ordered), "p50_ms": round(ordered[len(ordered) // 2] * 1000, 2)}
        line |= {"min_ms": round(ordered[0] * 1000, 2), "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 2)}
    line |= {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
