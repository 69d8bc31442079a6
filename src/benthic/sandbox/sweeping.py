"""Sweeps away what belongs to no sandbox that lives, such as the death of a host leaves behind.

Everything that a sandbox has carries its id, or the path of its home. So what is looked for is found first, and asked
about afterwards: a sandbox that comes to be meanwhile was written down before it had anything.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benthic.errors import SandboxError
from benthic.sandbox.driver import Driver
from benthic.sandbox.drivers.trial import is_passing
from benthic.sandbox.folders import Folders
from benthic.sandbox.linux import HomeState
from benthic.sandbox.records import State


@dataclass(frozen=True, slots=True)
class WantedHomes:
    """The homes of sandboxes that live or are started, of drivers that are tried, and of machines kept ready."""

    folders: Folders

    def __contains__(self, home: object) -> bool:
        """As things are now."""
        assert isinstance(home, Path)
        if is_passing(home.name):
            return True
        try:
            record = self.folders.load(home.name)
        except SandboxError:  # no id
            return False
        return record is not None and record.state is not State.DEAD


async def sweep(folders: Folders, drivers: Sequence[Driver]) -> list[str]:
    """Removes every such resource, and says what went."""
    wanted = WantedHomes(folders)
    gone = []
    for home in sorted(folders.homes.iterdir()):
        if not HomeState(home).load().get("driver") and home not in wanted:
            for driver in drivers:  # whose it was is not known, or no longer
                with contextlib.suppress(SandboxError):
                    await driver.remove(home)
            gone += await _removed(home)
    for driver in drivers:
        gone += await driver.reconcile(wanted)
    for home in sorted(folders.homes.iterdir()):
        if home not in wanted:
            gone += await _removed(home)
    return gone + await asyncio.to_thread(folders.sweep)


async def _removed(home: Path) -> list[str]:
    await asyncio.to_thread(shutil.rmtree, home, True)
    return [f"folder {home}" if not home.exists() else f"most of folder {home}, of which something is still in use"]
