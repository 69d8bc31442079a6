"""Which kinds of sandbox work on this machine, found out by starting one of each."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from benthic.sandbox.driver import Driver
from benthic.sandbox.drivers.container import ContainerDriver
from benthic.sandbox.drivers.function import FunctionDriver
from benthic.sandbox.drivers.microvm import microvm_driver
from benthic.sandbox.drivers.oci_runtime import RUNTIMES
from benthic.sandbox.drivers.vm import vm_driver
from benthic.sandbox.drivers.warm import WarmDriver
from benthic.sandbox.images import Store
from benthic.sandbox.linux.memory import free_memory_bytes
from benthic.sandbox.local import STATE_ROOT, LocalHost
from benthic.sandbox.records import KINDS, ProbeResult

PROBE_S = 120.0


def all_drivers(root: Path, *, warm_clones: int = 0) -> list[Driver]:
    """Every driver, those of a kind in the order in which they are tried. Nothing is started.

    Args:
        root: the state root, whose `store` holds the images.
        warm_clones: of each kind of virtual machine, kept ready for the next starts by the host that opens them.
    """
    store = Store(root / "store")
    machines = [microvm_driver(root, store), vm_driver(root, store)]
    return [
        FunctionDriver(root, store),
        *(ContainerDriver(root, store, runtime=runtime) for runtime in RUNTIMES),
        *_over_http(root, store),
        *(
            WarmDriver(driver, root, warm_clones, free_memory=free_memory_bytes) if warm_clones else driver
            for driver in machines
        ),
    ]


def _over_http(root: Path, store: Store) -> list[Driver]:
    """Those that speak HTTP to somebody: only with httpx, which is in the optional extra `sandbox`."""
    try:
        from benthic.sandbox.drivers.docker_driver import DockerDriver
        from benthic.sandbox.drivers.firecracker import firecracker_driver
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        return []
    return [DockerDriver(root, store), firecracker_driver(root, store)]


def local_host(root: Path | str | None = None) -> LocalHost:
    """This machine as a host with every driver, not opened yet; None takes `STATE_ROOT`."""
    folder = Path(root or STATE_ROOT).expanduser()
    return LocalHost(folder, all_drivers(folder))


async def probe(drivers: Sequence[Driver], *, limit_s: float = PROBE_S) -> list[ProbeResult]:
    """Starts one sandbox with each driver, one after the other, and says how it went; never raises."""
    return [await _probed(driver, limit_s) for driver in drivers]


def working_kinds(results: Sequence[ProbeResult]) -> list[str]:
    """The kinds that can be made here, in their usual order."""
    return [kind for kind in KINDS if any(result.kind == kind and result.is_working for result in results)]


async def _probed(driver: Driver, limit_s: float) -> ProbeResult:
    try:
        async with asyncio.timeout(limit_s):
            return await driver.probe()
    except TimeoutError:
        detail = f"did not start within {limit_s:.0f} s"
        return ProbeResult(kind=driver.kind, driver=driver.name, is_working=False, detail=detail)
