"""Init alone, without isolation: what its protocol, its monitors and its file calls cost over plain subprocesses.

    python benchmarks/sandbox/bench_init.py [--repeats 200] [--mib 32] [--out FILE]

`true` is a command to its end and forgotten, `cat` an output of `--mib` read as it comes, `read` and `write` a file of
8 MiB. The lines `subprocess` and `plain file` are the same by asyncio and by Python itself, in this process.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benthic.bench.hardware import hardware_line
from benthic.sandbox.guest import Guest, JobSetup, build_init
from benthic.sandbox.guest.streams import connect_unix, listen_unix
from benthic.sandbox.records import Command

MIB = 1 << 20
FILE_BYTES = 8 * MIB


@dataclass(frozen=True, slots=True)
class Row:
    """One thing done in one way."""

    what: str
    way: str
    p50_ms: float
    p99_ms: float
    mib_per_s: float | None = None


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=200)
    arguments.add_argument("--mib", type=int, default=32)
    arguments.add_argument("--out", type=Path, help="appends one JSON line a measurement")
    options = arguments.parse_args()
    print(hardware_line())
    rows = asyncio.run(measure(options.repeats, options.mib))
    for row in rows:
        rate = "" if row.mib_per_s is None else f"{row.mib_per_s:8.0f} MiB/s"
        print(f"{row.what:6} {row.way:12} p50 {row.p50_ms:8.2f} ms   p99 {row.p99_ms:8.2f} ms {rate}")
    if options.out:
        with options.out.open("a") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)


async def measure(repeats: int, mib: int) -> list[Row]:
    """All rows, from an init of its own."""
    with tempfile.TemporaryDirectory(prefix="bench-init-") as name:
        folder = Path(name)
        listener = listen_unix(folder / "socket")
        process = subprocess.Popen(
            [str(build_init()), "--listen-fd", str(listener.fileno())], pass_fds=[listener.fileno()], env={}
        )
        listener.close()
        try:
            guest = await Guest.attach(partial(connect_unix, folder / "socket"))
            await guest.configure(JobSetup(uid=os.getuid(), gid=os.getgid(), env=(("PATH", "/usr/bin:/bin"),)))
            path, content = folder / "file", os.urandom(FILE_BYTES)
            rows = [
                await row("true", "init", repeats, partial(run_true, guest)),
                await row("true", "subprocess", repeats, run_true_plainly),
                await row("cat", "init", 5, partial(cat, guest, mib), mib),
                await row("cat", "subprocess", 5, partial(cat_plainly, mib), mib),
                await row("write", "init", 10, partial(guest.files.write, str(path), content), FILE_BYTES // MIB),
                await row("write", "plain file", 10, partial(asyncio.to_thread, path.write_bytes, content), 8),
                await row("read", "init", 10, partial(guest.files.read, str(path)), FILE_BYTES // MIB),
                await row("read", "plain file", 10, partial(asyncio.to_thread, path.read_bytes), FILE_BYTES // MIB),
            ]
            await guest.close()
        finally:
            process.kill()
            process.wait()
    return rows


async def row(what: str, way: str, repeats: int, do: Callable[[], Awaitable[object]], mib: int | None = None) -> Row:
    """Times a thing again and again, after one time that does not count."""
    await do()
    times_ms = []
    for _ in range(repeats):
        start = time.perf_counter()
        await do()
        times_ms.append((time.perf_counter() - start) * 1e3)
    times_ms.sort()
    p50_ms = statistics.median(times_ms)
    rate = None if mib is None else mib / p50_ms * 1e3
    return Row(what, way, p50_ms, times_ms[min(len(times_ms) - 1, int(0.99 * len(times_ms)))], rate)


async def run_true(guest: Guest) -> None:
    result = await guest.run("true", Command(argv=("true",)))
    assert result.returncode == 0
    await guest.forget("true")


async def run_true_plainly() -> None:
    process = await asyncio.create_subprocess_exec("true", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    await process.communicate()


async def cat(guest: Guest, mib: int) -> None:
    await guest.start("cat", Command(shell=f"head -c {mib * MIB} /dev/zero"), holds_output=True)
    seen = 0
    async for chunk in guest.output("cat"):
        seen += len(chunk.data)
    assert seen == mib * MIB
    await guest.forget("cat")


async def cat_plainly(mib: int) -> None:
    process = await asyncio.create_subprocess_shell(f"head -c {mib * MIB} /dev/zero", stdout=subprocess.PIPE)
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass
    await process.wait()


if __name__ == "__main__":
    main()
