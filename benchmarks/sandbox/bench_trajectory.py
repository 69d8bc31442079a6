"""What the trajectory log costs a command, and what it saves a program that is run again.

    python benchmarks/sandbox/bench_trajectory.py --kind container --commands 200

Two measurements on one sandbox of a kind. Overhead: the log's own share of a call, begin and end with their syncs, on
the disk under --root; beside it the disk's bare sync, twice, which no log can do without. Resume: a program of so many
commands run once for real, then again by a host that opens the log anew. One JSON line each.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import mean, median

from benthic.sandbox import LocalHost, Sandbox, SandboxSpec
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.probe import all_drivers
from benthic.sandbox.trajectory import BlobStore, Head, TrajectoryLog

# What an agent's commands are like: a build step, a search, a small script.
PROGRAM = (
    "echo step {n} >> log",
    "grep -c step log",
    "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done",
    "ls -la /work",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", default="container", choices=("function", "container", "microvm", "vm"))
    parser.add_argument("--commands", type=int, default=200)
    parser.add_argument("--root", type=Path, help="folder for state; a temporary one by default")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-trajectory-", dir=arguments.root) as folder:
        asyncio.run(measure(arguments.kind, arguments.commands, Path(folder)))


async def measure(kind: str, num_commands: int, root: Path) -> None:
    times_ms, syncs_ms = await log_overhead(root, num_commands), bare_syncs(root, num_commands)
    line = {
        "case": "log overhead of a command",
        "commands": num_commands,
        "ms_median": round(median(times_ms), 3),
        "ms_mean": round(mean(times_ms), 3),
        "ms_p99": round(sorted(times_ms)[int(0.99 * len(times_ms))], 3),
        "two_bare_syncs_ms_median": round(median(syncs_ms), 3),
    }
    print(json.dumps(line), flush=True)
    print(json.dumps(await resume(kind, num_commands, root)), flush=True)


async def log_overhead(root: Path, num_commands: int) -> list[float]:
    """Milliseconds of begin and end, with a command's usual sizes."""
    log = await TrajectoryLog.create(root / "log", BlobStore(root / "blobs"), Head(sandbox_id="0" * 12))
    request = Request(verb="exec", arguments={"shell": "make test", "timeout_s": 60.0})
    answer = Answer(value={"returncode": 0, "num_stdout_bytes": 2000}, data=b"x" * 2000)
    times_ms = []
    for seq in range(num_commands):
        began = time.perf_counter()
        await log.begin(seq, request)
        await log.end(seq, answer)
        times_ms.append(1e3 * (time.perf_counter() - began))
    await log.close()
    return times_ms


def bare_syncs(root: Path, count: int) -> list[float]:
    """Milliseconds of two appends to a file, each synced."""
    times_ms = []
    with open(root / "bare", "wb", buffering=0) as file:
        for _ in range(count):
            began = time.perf_counter()
            for size in (200, 2200):
                file.write(b"x" * size)
                os.fdatasync(file.fileno())
            times_ms.append(1e3 * (time.perf_counter() - began))
    return times_ms


async def resume(kind: str, num_commands: int, root: Path) -> dict[str, object]:
    drivers = [driver for driver in all_drivers(root) if driver.kind == kind]
    async with LocalHost(root, drivers) as host:
        sandbox = await Sandbox.create_from(SandboxSpec(kind=kind), host=host)  # type: ignore[arg-type]
        began = time.perf_counter()
        said = await run(sandbox, num_commands)
        run_s = time.perf_counter() - began
    async with LocalHost(root, drivers) as host:
        began = time.perf_counter()
        again = await Sandbox.resume_from(sandbox.id, host=host)
        replayed = await run(again, num_commands)
        resume_s = time.perf_counter() - began
        assert replayed == said
        log_bytes = host.folders.log(sandbox.id).stat().st_size
        await again.close()
        await host.reconcile()
    return {
        "case": f"resume of {num_commands} commands, {kind}",
        "run_s": round(run_s, 3),
        "resume_s": round(resume_s, 4),
        "share_percent": round(100 * resume_s / run_s, 2),
        "us_a_replayed_call": round(1e6 * resume_s / num_commands, 1),
        "log_bytes_a_call": round(log_bytes / num_commands),
    }


async def run(sandbox: Sandbox, num_commands: int) -> list[bytes]:
    return [(await sandbox.exec(PROGRAM[n % len(PROGRAM)].format(n=n))).stdout for n in range(num_commands)]


if __name__ == "__main__":
    main()
