"""Whose sandboxes a verb means: this machine's, or those behind a URL."""

import contextlib
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from benthic.sandbox.fleet import RemoteHost
from benthic.sandbox.host import Host
from benthic.sandbox.images.collect import collect
from benthic.sandbox.images.store import Store
from benthic.sandbox.probe import local_host

TOKEN_VARIABLE = "BENTHIC_SANDBOX_TOKEN"


@contextlib.asynccontextmanager
async def opened_host(root: Path, url: str | None) -> AsyncGenerator[Host, None]:
    """The host, opened; leaving it ends no sandbox.

    Args:
        root: state root of this machine, for no `url`.
        url: of a gateway or an agent. Its token comes from the environment: a command line can be read by others.
    """
    if url is not None:
        async with RemoteHost(url, token=os.environ.get(TOKEN_VARIABLE)) as remote:
            yield remote
        return
    async with local_host(root) as local:
        yield local


async def reconcile(root: Path) -> list[str]:
    """Sweeps what belongs to no living sandbox, and layers that nothing refers to; says what went."""
    async with local_host(root) as host:
        removed = await host.reconcile()
    collected = collect(Store(root / "store"))
    if collected.num_layers:
        removed.append(f"{collected.num_layers} layers of {collected.size_bytes >> 20} MiB that nothing refers to")
    return removed
