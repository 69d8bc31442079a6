"""Containers: from create to the first result, a command, a hundred alive at once, a burst of three hundred.

    sudo python benchmarks/sandbox/bench_container.py [--runtimes crun,runc] [--starts 30] [--alive 100] [--burst 300]

One line of JSON a measurement. Beside them a plain subprocess and, where a daemon answers, `docker run`: both without a
log, limits of disk, or anything that survives its client. `load` is the machine's load average when a case began: times
of a machine that is busy with other work say little.
"""

import argparse
import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from benthic.sandbox.drivers.container import RUNTIMES, ContainerDriver
from benthic.sandbox.drivers.container_machine import ContainerMachine
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.records import Command, SandboxSpec

SPEC = SandboxSpec(kind="container")
TRUE = Command(argv=("true",))
AT_ONCE = 4
"""Starts in flight: on two cores more of them only wait for each other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtimes", default=",".join(RUNTIMES))
    parser.add_argument("--starts", type=int, default=30)
    parser.add_argument("--alive", type=int, default=100)
    parser.add_argument("--burst", type=int, default=300)
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("containers need root: run with sudo")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "homes").mkdir()
        store = Store(root / "store")
        for runtime in options.runtimes.split(","):
            asyncio.run(measure(ContainerDriver(root, store, runtime=runtime), options))
    show("subprocess", "run true", times(options.starts, lambda: subprocess.run(["true"], check=True)))
    if shutil.which("docker") and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        run = ["docker", "run", "--rm", "--network=none", "busybox", "true"]
        show("docker", "run true", times(options.starts, lambda: subprocess.run(run, check=True, capture_output=True)))
    else:
        show("docker", "run true", None, reason="no daemon answers here")


async def measure(driver: ContainerDriver, options: argparse.Namespace) -> None:
    probed = await driver.probe()
    if not probed.is_working:
        show(driver.name, "probe", None, reason=probed.detail)
        return
    first = [await first_result(driver) for _ in range(options.starts)]
    show(driver.name, "create to first result", [seconds for seconds, _ in first])
    machine = first[0][1]
    guest = await Guest.attach(machine.connect)
    rtts = [await timed(lambda n=n: guest.run(f"c{n}", TRUE)) for n in range(100)]  # type: ignore[misc]
    show(driver.name, "exec true", rtts)
    await guest.close()
    await end(driver, [machine for _, machine in first])
    await alive(driver, options.alive)
    await burst(driver, options.burst)


async def alive(driver: ContainerDriver, count: int) -> None:
    """So many at once, and what each of them costs in memory."""
    began = time.perf_counter()
    before = available_bytes()
    machines = await together(count, lambda: machine_of(driver))
    made_s = time.perf_counter() - began
    each = [machine.group.memory_bytes() for machine in machines]
    answered = [await first_command(machine) for machine in machines]
    ended_s = await timed(lambda: end(driver, machines))
    facts = {
        "alive": sum(answered),
        "per_s": count / made_s,
        "host_mib_each": (before - available_bytes()) / count / 2**20,
        "group_mib_each": sum(each) / count / 2**20,
        "end_s": ended_s,
    }
    show(driver.name, f"{count} alive", [made_s], **facts)


async def burst(driver: ContainerDriver, count: int) -> None:
    """So many starts asked for in one moment, each ended as soon as it has answered."""
    failures: list[str] = []

    async def once() -> float:
        try:
            seconds, machine = await first_result(driver)
        except Exception as error:  # noqa: BLE001 - counted
            failures.append(str(error))
            return 0.0
        await end(driver, [machine])
        return seconds

    began = time.perf_counter()
    seconds = await together(count, once)
    took_s = time.perf_counter() - began
    show(driver.name, f"burst of {count}", seconds, took_s=took_s, failures=len(failures), first_failure=failures[:1])


async def machine_of(driver: ContainerDriver) -> ContainerMachine:
    home = driver.root / "homes" / secrets.token_hex(6)
    home.mkdir()
    return await driver.start(SPEC, home)


async def first_command(machine: ContainerMachine) -> bool:
    guest = await Guest.attach(machine.connect)
    await guest.configure(machine.setup)
    result = await guest.run("first", TRUE)
    await guest.close()
    return result.returncode == 0


async def first_result(driver: ContainerDriver) -> tuple[float, ContainerMachine]:
    began = time.perf_counter()
    machine = await machine_of(driver)
    assert await first_command(machine)
    return time.perf_counter() - began, machine


async def end(driver: ContainerDriver, machines: Sequence[ContainerMachine]) -> None:
    async def one(machine: ContainerMachine) -> None:
        await machine.destroy()
        shutil.rmtree(machine.home)

    await asyncio.gather(*map(one, machines))


async def together(count: int, make: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Calls so many times, a few at once."""
    permits = asyncio.Semaphore(AT_ONCE)

    async def one() -> Any:
        async with permits:
            return await make()

    return await asyncio.gather(*(one() for _ in range(count)))


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


def times(count: int, work: Callable[[], object]) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return found


def available_bytes() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def show(system: str, case: str, seconds: Sequence[float] | None, **facts: object) -> None:
    """One line of JSON; times in milliseconds."""
    line: dict[str, object] = {"system": system, "case": case, "load": round(os.getloadavg()[0], 1)}
    if seconds:
        ordered = sorted(seconds)
        line |= {"n": len(ordered), "p50_ms": round(ordered[len(ordered) // 2] * 1000, 2)}
        line |= {"min_ms": round(ordered[0] * 1000, 2), "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 2)}
    line |= {name: round(value, 3) if isinstance(value, float) else value for name, value in facts.items()}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
