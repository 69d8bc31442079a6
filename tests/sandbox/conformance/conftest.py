"""One host of each kind for the whole suite; a kind without its programs on this machine is skipped with the reason."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox import LocalHost, Sandbox, SandboxSpec
from benthic.sandbox.driver import Driver
from benthic.sandbox.probe import all_drivers, probe
from tests.sandbox.bare_driver import BareDriver
from tests.sandbox.bare_host import needs_unshare
from tests.sandbox.kinds import require_kind

KINDS = [pytest.param("bare", marks=needs_unshare), "function", "container", "microvm", "vm"]


@dataclass
class Stand:
    """A host of one kind, and the loop that it lives in."""

    kind: str
    root: Path
    host: LocalHost
    runner: asyncio.Runner

    @property
    def spec(self) -> SandboxSpec:
        if self.kind == "bare":
            return SandboxSpec(kind="container", cwd=str(self.root / "work"))
        return SandboxSpec(kind=self.kind)  # type: ignore[arg-type]

    @property
    def has_snapshots(self) -> bool:
        return self.kind != "function"

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
    kind, root = request.param, tmp_path_factory.mktemp("s")
    if kind != "bare":
        require_kind(kind)
    drivers: list[Driver] = [BareDriver(root)] if kind == "bare" else []
    drivers += [driver for driver in all_drivers(root) if driver.kind == kind]
    with asyncio.Runner() as runner:
        host = LocalHost(root, drivers)
        runner.run(host.open())
        probed = runner.run(probe(drivers[:1]))
        if not probed[0].is_working:
            probed = runner.run(probe(drivers))
        assert any(result.is_working for result in probed), [result.detail for result in probed]
        yield Stand(kind, root, host, runner)
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
