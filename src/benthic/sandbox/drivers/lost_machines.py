"""Virtual machines that may belong to nobody: found by their processes, their layers in the store, and their homes."""

from collections.abc import Iterable
from pathlib import Path

from benthic.sandbox.driver import Driver
from benthic.sandbox.drivers.guest_hardware import OWNER, machine_name
from benthic.sandbox.drivers.qemu_process import running
from benthic.sandbox.images import Store
from benthic.sandbox.linux import HomeState, ProcessId


def machine_homes(
    driver: Driver, state_root: Path, store: Store, processes: Iterable[tuple[str, ProcessId]]
) -> list[Path]:
    """Where something of a driver's machines lies, or would lie if there were a folder; makers of templates too.

    Args:
        processes: of the driver's machines, by the names of their homes.
    """
    homes = state_root / "homes"
    names = {name for name, _ in processes}
    held = {holder.removeprefix(OWNER) for holder in store.owners() if holder.startswith(OWNER)}
    # Looked at last: a machine that is handed over meanwhile is then seen in its new home.
    at = {machine_name(home): home.name for home in homes.glob("*")}
    names = {at.get(name, name) for name in names} | {name for name in held if name not in at}
    names |= {home.name for home in homes.glob("*") if _made_by(home) == (driver.name, driver.kind)}
    return [homes / name for name in sorted(names)]


async def end_machine(tag: str, home: Path, *program: str) -> None:
    """Ends the processes that run a home's machine, written down or not, and waits for them.

    Args:
        program: how their names begin, if they are not QEMU's.
    """
    state = HomeState(home).load()
    ours = [process for name, process in running(tag, *program) if name == machine_name(home)]
    if "pid" in state:
        ours.append(ProcessId(state["pid"], state["start_ticks"]))
    for process in ours:
        process.kill()
        await process.wait(10.0)


def _made_by(home: Path) -> tuple[object, object]:
    state = HomeState(home).load()
    return state.get("driver"), state.get("kind")
