"""Function sandboxes: calls in a warm Python, create to first result, a thousand alive at once, a burst of creates.

    sudo python benchmarks/sandbox/bench_function.py [--calls 300] [--starts 30] [--alive 1000] [--burst 300]

One line of JSON a measurement. Beside them a fresh Python in a plain subprocess, which guards against nothing. Times of
a machine that is busy with other work (`load`) say little.
"""

import argparse
import asyncio
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import AT_ONCE, Bench, end, show, timed, times, together

from benthic.sandbox.driver import Machine
from benthic.sandbox.drivers.function import FunctionDriver
from benthic.sandbox.images import Store
from benthic.sandbox.records import FunctionCall

SQUARE = FunctionCall(source="def square(x):\n    return x * x", name="square", args=(7,))


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
        asyncio.run(measure(Bench(driver, Path(folder) / "homes"), options))
    command = [shutil.which("python3", path="/usr/bin") or sys.executable, "-I", "-c", "print(7 * 7)"]
    fresh = times(options.starts, lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    show("subprocess", "a fresh Python", fresh)


async def measure(bench: Bench, options: argparse.Namespace) -> None:
    probed = await bench.driver.probe()
    if not probed.is_working:
        sys.exit(probed.detail)
    machine = await bench.make()
    bench.show("first call, which starts the warm Python", [await timed(lambda: machine.call(SQUARE))])
    bench.show("call", [await timed(lambda: call(machine)) for _ in range(options.calls)])
    began = time.perf_counter()
    await together(options.calls, lambda: call(machine))
    bench.show(f"calls, {AT_ONCE} at once", None, per_s=options.calls / (time.perf_counter() - began))
    await end([machine])
    made = await bench.starts(options.starts)
    bench.show("destroy", [await timed(lambda m=m: end([m])) for m in made])  # type: ignore[misc]
    await bench.burst(options.burst)
    await bench.alive(options.alive)


async def call(machine: Machine) -> None:
    result = await machine.call(SQUARE)
    assert result.value == 49, result


if __name__ == "__main__":
    main()
