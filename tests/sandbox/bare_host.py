"""Hosts over the bare driver, for tests: `scene` runs a coroutine function with one and leaves nothing behind."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox import LocalHost, Sandbox, SandboxSpec
from tests.sandbox.bare_driver import BareDriver

needs_unshare = pytest.mark.skipif(
    shutil.which("unshare") is None or (os.geteuid() != 0), reason="the bare driver makes namespaces: run as root"
)


def spec(root: Path, **facts: Any) -> SandboxSpec:
    return SandboxSpec(kind="container", cwd=str(root / "work"), **facts)


@asynccontextmanager
async def host_of(root: Path, **options: Any) -> AsyncIterator[LocalHost]:
    """A host; leaving it leaves its sandboxes alive."""
    async with LocalHost(root, [BareDriver(root)], **options) as host:
        yield host


def scene(root: Path, play: Callable[[LocalHost], Awaitable[None]], limit_s: float = 60.0, **options: Any) -> None:
    """Runs a scene, then ends every sandbox of the root and checks that nothing is left."""

    async def whole() -> None:
        try:
            async with host_of(root, **options) as host:
                await asyncio.wait_for(play(host), limit_s)
        finally:
            await sweep(root)

    asyncio.run(whole())


async def sweep(root: Path) -> None:
    async with host_of(root) as host:
        for info in await host.sandboxes():
            await host.close(info.id)
        await host.reconcile()
        assert list(host.folders.homes.iterdir()) == []


async def made(host: LocalHost, **facts: Any) -> Sandbox:
    return await Sandbox.create_from(spec(host.folders.root, **facts), host=host)
