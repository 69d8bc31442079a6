"""The first try of a driver, ended at its worst moment, leaves nothing behind."""

import asyncio
from pathlib import Path

import pytest

from benthic.sandbox.drivers.trial import try_out
from benthic.sandbox.linux import HomeState, ProcessId
from tests.sandbox.bare_driver import BareDriver


class SlowToEnd(BareDriver):
    """Stops for a moment before it removes anything."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_ending = asyncio.Event()
        self.processes: list[ProcessId] = []

    async def remove(self, home: Path) -> None:
        state = HomeState(home).load()
        self.processes.append(ProcessId(state["pid"], state["start_ticks"]))
        self.is_ending.set()
        await asyncio.sleep(0.05)
        await super().remove(home)


async def described() -> str:
    return ""


def test_a_try_that_is_cancelled_while_its_sandbox_is_ended_still_ends_it(tmp_path: Path) -> None:
    async def run() -> SlowToEnd:
        driver = SlowToEnd(tmp_path)
        trying = asyncio.create_task(try_out(driver, tmp_path, described))
        async with asyncio.timeout(30):
            await driver.is_ending.wait()
            trying.cancel()
            with pytest.raises(asyncio.CancelledError):
                await trying
        return driver

    driver = asyncio.run(run())
    assert [process.is_alive() for process in driver.processes] == [False]
    assert list((tmp_path / "homes").iterdir()) == []
