"""Virtual machines: booting a template, cloning it to the first result, round trips, transfers, memory of each clone.

    python benchmarks/sandbox/bench_vm.py [--kind microvm|vm] [--clones 8] [--out FILE]

One JSON line a kind. `clone_ms` is from asking the driver to the first command's result, clones one after another;
`warm_ms` the same where a clone was kept ready; `cpu_ms` is the processor time that the clone's QEMU took for
that, which a busy host does not stretch. `pss_mib` is
the proportional share of memory of each of the clones while all of them live. Best run alone on the machine.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benthic.bench.hardware import hardware_line
from benthic.sandbox.drivers.microvm import microvm_driver
from benthic.sandbox.drivers.qemu_machine import QemuMachine
from benthic.sandbox.drivers.vm import vm_driver
from benthic.sandbox.drivers.warm import WarmDriver
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.linux.memory import free_memory_bytes
from benthic.sandbox.records import MIB, Command, SandboxSpec

DRIVERS = {"microvm": microvm_driver, "vm": vm_driver}
TRANSFER_BYTES = 8 * MIB


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--kind", choices=tuple(DRIVERS), action="append")
    arguments.add_argument("--clones", type=int, default=8)
    arguments.add_argument("--out", type=Path)
    options = arguments.parse_args()
    for kind in options.kind or DRIVERS:
        with tempfile.TemporaryDirectory(prefix="bench-vm-") as folder:
            row = asyncio.run(measure(kind, options.clones, Path(folder)))
        line = json.dumps({"bench": "vm", "hardware": hardware_line(), **row})
        print(line)
        if options.out:
            with options.out.open("a") as file:
                file.write(line + "\n")


async def measure(kind: str, num_clones: int, root: Path) -> dict[str, Any]:
    driver = DRIVERS[kind](root, Store(root / "store"))
    keeper = WarmDriver(driver, root, 1, free_memory=free_memory_bytes)
    spec = SandboxSpec(kind=driver.kind)
    (root / "homes").mkdir()
    machines: list[QemuMachine] = []
    try:
        boot_s, _ = await first_result(driver, spec, root / "homes" / f"{0:012x}", machines)
        taken = [
            await first_result(driver, spec, root / "homes" / f"{index:012x}", machines)
            for index in range(1, num_clones + 1)
        ]
        keeper.open()
        await first_result(keeper, spec, root / "homes" / f"{1 << 20:012x}", machines)
        warm = [
            await warm_result(keeper, spec, root / "homes" / f"{(1 << 20) + index:012x}", machines)
            for index in range(1, num_clones + 1)
        ]
        pss = [pss_mib(machine) for machine in machines]
        guest = await Guest.attach(machines[-1].connect)
        await guest.configure(machines[-1].setup)
        trips = [await timed(guest.run(f"trip{index}", Command(argv=("true",)))) for index in range(20)]
        into_s = await timed(guest.files.write("/work/file", os.urandom(TRANSFER_BYTES)))
        out_s = await timed(guest.files.read("/work/file", max_bytes=TRANSFER_BYTES))
        await guest.close()
        snapshot_s = await timed(machines[-1].snapshot("bench"))
    finally:
        await keeper.leave()
        for machine in machines:
            await machine.destroy()
        await driver.reconcile([])
    clone_ms, cpu_ms = ([round(1000 * pair[index]) for pair in taken] for index in range(2))
    return {
        "kind": kind,
        "clones": num_clones,
        "boot_and_clone_s": round(boot_s, 2),
        "clone_ms_min": min(clone_ms),
        "clone_ms_p50": statistics.median(clone_ms),
        "clone_ms_max": max(clone_ms),
        "warm_ms_min": round(1000 * min(warm), 1),
        "warm_ms_p50": round(1000 * statistics.median(warm), 1),
        "warm_ms_max": round(1000 * max(warm), 1),
        "cpu_ms_p50": statistics.median(cpu_ms),
        "command_ms_p50": round(1000 * statistics.median(trips), 1),
        "write_mib_s": round(TRANSFER_BYTES / MIB / into_s, 1),
        "read_mib_s": round(TRANSFER_BYTES / MIB / out_s, 1),
        "snapshot_s": round(snapshot_s, 2),
        "pss_mib_p50": round(statistics.median(pss), 1),
        "load_average": os.getloadavg()[0],
    }


async def first_result(driver: Any, spec: SandboxSpec, home: Path, machines: list[QemuMachine]) -> tuple[float, float]:
    """Seconds, and seconds of processor time, to a new machine's first result."""
    home.mkdir()
    began = time.perf_counter()
    machine = await driver.start(spec, home)
    machines.append(machine)
    guest = await Guest.attach(machine.connect)
    await guest.configure(machine.setup)
    await guest.run("first", Command(argv=("true",)))
    took_s = time.perf_counter() - began
    await guest.close()
    return took_s, (await machine.usage()).cpu_s


async def warm_result(keeper: WarmDriver, spec: SandboxSpec, home: Path, machines: list[QemuMachine]) -> float:
    """Seconds to the first result of a machine that was ready."""
    while not keeper.ready:
        await asyncio.sleep(0.05)
    took_s, _ = await first_result(keeper, spec, home, machines)
    return took_s


async def timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


def pss_mib(machine: QemuMachine) -> float:
    """What a machine adds to the host's memory, shared pages divided among those that share them."""
    total = 0
    for pid in machine.group.pids() if machine.group else ():
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


if __name__ == "__main__":
    main()
