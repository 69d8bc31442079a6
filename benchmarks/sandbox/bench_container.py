"""Containers: from create to the first result, a command, a hundred alive at once, a burst of three hundred.

    sudo python benchmarks/sandbox/bench_container.py [--drivers crun,runc,gvisor,docker] [--starts 30] [--alive 100]
                                                      [--burst 300]

One line of JSON a measurement. Beside them a plain subprocess and, where a Docker daemon answers, the same cases by
docker-py (`pip install docker`): both without a log, a limit of disk, or anything that survives its client. `load` is
the machine's load average: times of a machine that is busy with other work say little.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from by_docker_py import measure_docker_py
from measuring import TRUE, Bench, end, show, timed, times

from benthic.sandbox.guest import Guest
from benthic.sandbox.probe import all_drivers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drivers", default="crun,runc,gvisor,docker")
    for name, default in (("starts", 30), ("alive", 100), ("burst", 300)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if os.geteuid():
        sys.exit("containers need root: run with sudo")
    with tempfile.TemporaryDirectory() as folder:
        made = {driver.name: driver for driver in all_drivers(Path(folder))}
        for name in options.drivers.split(","):
            if name in made:
                asyncio.run(measure(Bench(made[name], Path(folder) / "homes"), options))
            else:
                show(name, "probe", None, reason="not among the drivers; docker needs httpx, from benthic[sandbox]")
    show("subprocess", "run true", times(options.starts, lambda: subprocess.run(["true"], check=True)))
    measure_docker_py(starts=options.starts, alive=options.alive, burst=options.burst)


async def measure(bench: Bench, options: argparse.Namespace) -> None:
    probed = await bench.driver.probe()
    if not probed.is_working:
        bench.show("probe", None, reason=probed.detail)
        return
    made = await bench.starts(options.starts)
    guest = await Guest.attach(made[0].connect)
    bench.show("exec true", [await timed(lambda n=n: guest.run(f"c{n}", TRUE)) for n in range(100)])  # type: ignore[misc]
    await guest.close()
    await end(made)
    await bench.alive(options.alive)
    await bench.burst(options.burst)


if __name__ == "__main__":
    main()
