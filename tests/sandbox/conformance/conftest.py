"""One host of each kind for the whole suite; a kind without its programs on this machine is skipped with the reason.

`firecracker` is Firecracker's driver over a program that plays Firecracker.
At a fleet the same suite goes through gateway and agent: what it sees there must be what it sees in process.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox import Limits, LocalHost, Sandbox, SandboxSpec
from benthic.sandbox.driver import Driver
from benthic.sandbox.host import Host
from benthic.sandbox.probe import all_drivers, probe
from benthic.sandbox.records import MIB
from tests.sandbox.bare_driver import BareDriver
from tests.sandbox.bare_host import needs_unshare
from tests.sandbox.drivers.firecrackers import played_firecracker, playing_driver
from tests.sandbox.fleet.small_fleet import small_fleet
from tests.sandbox.kinds import CONTAINER_DRIVERS, require_driver, require_kind

KINDS = [pytest.param("bare", marks=needs_unshare), "function", "container", "microvm", "vm", "firecracker"]
KINDS += [pytest.param(name, marks=pytest.mark.nightly) for name in CONTAINER_DRIVERS]
KINDS += ["function at a fleet", pytest.param("container at a fleet", marks=pytest.mark.nightly)]
AT_A_FLEET = " at a fleet"
LONG_AT_A_FLEET = (
    "test_time_ends_a_command_with_all",
    "test_silence_ends",
    "test_an_archive_that_leads_outside",
    "test_another_host_takes_over",
)
"""Of which a fleet's share is the same as of others."""
LONG_IN_A_VM = "test_a_snapshot_starts_others"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        is_long = AT_A_FLEET in item.name and item.name.startswith(LONG_AT_A_FLEET)
        if is_long or (item.name.endswith("vm]") and item.name.startswith(LONG_IN_A_VM)):
            item.add_marker(pytest.mark.nightly)


@dataclass
class Stand:
    """A host of one kind, and the loop that it lives in."""

    kind: str
    root: Path
    local: LocalHost
    host: Host
    """What the suite talks to: the same, or the gateway of its fleet."""
    runner: asyncio.Runner

    @property
    def moment_s(self) -> float:
        """In which a shell has surely begun and printed a line: a translated machine on a busy host takes long."""
        return 2.0 if self.kind in ("microvm", "vm") else 0.7

    @property
    def spec(self) -> SandboxSpec:
        if self.kind == "bare":
            return SandboxSpec(kind="container", cwd=str(self.root / "work"))
        if self.kind == "firecracker":  # whose memory is hashed whole for a snapshot
            return SandboxSpec(kind="microvm", limits=Limits(memory_bytes=64 * MIB, disk_bytes=64 * MIB))
        if self.kind in CONTAINER_DRIVERS:
            return SandboxSpec(kind="container", driver=self.kind)
        return SandboxSpec(kind=self.kind)  # type: ignore[arg-type]

    def play(self, scene: Callable[[], Coroutine[Any, Any, None]], limit_s: float = 120.0) -> None:
        """Runs a scene in the host's loop."""
        self.runner.run(asyncio.wait_for(scene(), limit_s))

    @contextlib.asynccontextmanager
    async def made(self) -> AsyncIterator[Sandbox]:
        """A sandbox of the scene's own."""
        sandbox = await Sandbox.create_from(self.spec, host=self.host)
        try:
            yield sandbox
        finally:
            await sandbox.close()


@pytest.fixture(scope="session", params=KINDS)
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    kind, root = request.param.removesuffix(AT_A_FLEET), tmp_path_factory.mktemp("s")
    with contextlib.ExitStack() as stack:
        drivers: list[Driver] = [driver for driver in all_drivers(root) if kind in (driver.kind, driver.name)]
        if kind == "bare":
            drivers = [BareDriver(root)]
        elif kind == "firecracker":
            drivers = [playing_driver(root, stack.enter_context(played_firecracker()))]
        elif kind in CONTAINER_DRIVERS:
            require_driver(kind)
        else:
            require_kind(kind)
        runner = stack.enter_context(asyncio.Runner())
        host = LocalHost(root, drivers)
        runner.run(host.open())
        probed = runner.run(probe(drivers[:1]))
        if not probed[0].is_working:
            probed = runner.run(probe(drivers))
        assert any(result.is_working for result in probed), [result.detail for result in probed]
        if request.param.endswith(AT_A_FLEET):
            fleet = small_fleet(root, ("h1",), orphan_after_s=60.0, hosts={"h1": host})
            gateway = runner.run(fleet.__aenter__()).client(patience_s=30.0)
            yield Stand(kind, root, host, gateway, runner)
            runner.run(fleet.__aexit__(None, None, None))
        else:
            yield Stand(kind, root, host, host, runner)
        runner.run(_left_clean(host))


@pytest.fixture(scope="session")
def sandbox(stand: Stand) -> Iterator[Sandbox]:
    """One that most tests share; each works in files of its own."""
    made = stand.runner.run(_made(stand))
    yield made
    stand.runner.run(made.close())


async def _made(stand: Stand) -> Sandbox:
    return await Sandbox.create_from(stand.spec, host=stand.host)


async def _left_clean(host: LocalHost) -> None:
    for info in await host.sandboxes():
        await host.close(info.id)
    left = await host.reconcile()
    await host.leave()
    assert left == [], f"closing left {left}"
    assert list(host.folders.homes.iterdir()) == []
