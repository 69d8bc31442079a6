"""One try of a driver on this machine: a sandbox is started, runs `true`, and is ended."""

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

from benthic.sandbox.driver import Driver, Machine
from benthic.sandbox.guest import Guest
from benthic.sandbox.linux import ProcessId
from benthic.sandbox.records import Command, ProbeResult, SandboxSpec

_TRIAL, _WARM = "probe_", "warm_"


def trial_home() -> str:
    """A name for the home of a try, which is kept for as long as this process lives."""
    return _named(_TRIAL)


def warm_home() -> str:
    """The same for a machine that is woken ahead of its use."""
    return _named(_WARM)


def is_passing(name: str) -> bool:
    """Whether this is the name of a home that a living process tries a driver in, or keeps a machine ready in."""
    prefix = next((prefix for prefix in (_TRIAL, _WARM) if name.startswith(prefix)), None)
    process = None if prefix is None else ProcessId.named(name.removeprefix(prefix))
    return process is not None and process.is_alive()


def _named(prefix: str) -> str:
    process = ProcessId.of(os.getpid())
    assert process is not None
    return f"{prefix}{process.mark}_{uuid4().hex[:6]}"


async def try_out(driver: Driver, root: Path, describe: Callable[[], Awaitable[str]]) -> ProbeResult:
    """Never raises.

    Args:
        root: the state root, below which the try has a home of its own.
        describe: what runs it, in words; only asked for where it ran.
    """
    home = root / "homes" / trial_home()
    began = time.perf_counter()
    try:
        home.mkdir(parents=True)
        machine = await driver.start(SandboxSpec(kind=driver.kind), home)
        try:
            guest = await Guest.attach(machine.connect)
            await guest.configure(machine.setup)
            result = await guest.run("probe", Command(argv=("true",)))
            await guest.close()
            took_s = time.perf_counter() - began
            detail = await describe()
        finally:
            await _destroyed(machine)
    except Exception as error:  # noqa: BLE001 - the answer of a probe
        return ProbeResult(kind=driver.kind, driver=driver.name, is_working=False, detail=str(error))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    is_working = result.returncode == 0
    return ProbeResult(kind=driver.kind, driver=driver.name, is_working=is_working, detail=detail, start_s=took_s)


async def _destroyed(machine: Machine) -> None:
    """Ends it to the end, also for one who is cancelled meanwhile: half a removal would lose what its home tells."""
    ending = asyncio.ensure_future(machine.destroy())
    try:
        await asyncio.shield(ending)
    except asyncio.CancelledError:
        await asyncio.wait([ending])
        raise
