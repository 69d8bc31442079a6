"""Whose sandboxes a verb means: this machine's, or those behind a URL."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any

import typer

from benthic.sandbox.fleet import RemoteHost
from benthic.sandbox.garbage import lines
from benthic.sandbox.host import Host
from benthic.sandbox.probe import local_host

TOKEN_VARIABLE = "BENTHIC_SANDBOX_TOKEN"
PATIENCE_S = 10.0
"""Longer than a gateway's restart; whoever waits at a terminal wants to know."""
SLOW_S = 2.0


def run_until_signalled(work: Coroutine[Any, Any, int]) -> int:
    """Runs it to its end, and if the process is asked to end or its terminal is closed, lets it tidy up first.

    Returns: its exit code, or that of a program that was ended by that signal.
    """

    async def watched() -> int:
        task = asyncio.current_task()
        assert task is not None
        came: list[int] = []

        def end(number: int) -> None:
            came.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks for
                asyncio.get_running_loop().add_signal_handler(number, end, number)
        try:
            return await work
        except asyncio.CancelledError:
            if not came:
                raise
            return 128 + came[0]

    return asyncio.run(watched())


@contextlib.asynccontextmanager
async def said_if_slow(kind: str) -> AsyncGenerator[None, None]:
    """Says what is waited for if a start is slow, as the first one of a virtual machine is."""
    later = asyncio.get_running_loop().call_later(
        SLOW_S, lambda: typer.echo(f"still starting a {kind}; what the first one makes, later ones share", err=True)
    )
    try:
        yield
    finally:
        later.cancel()


@contextlib.asynccontextmanager
async def opened_host(root: Path, url: str | None) -> AsyncGenerator[Host, None]:
    """The host, opened; leaving it ends no sandbox.

    Args:
        root: state root of this machine, for no `url`.
        url: of a gateway or an agent. Its token comes from the environment: a command line can be read by others.
    """
    if url is not None:
        async with RemoteHost(url, token=os.environ.get(TOKEN_VARIABLE), patience_s=PATIENCE_S) as remote:
            yield remote
        return
    async with local_host(root) as local:
        yield local


async def clear(root: Path, *, keep_logs_s: float | None, is_dry: bool) -> list[str]:
    """Sweeps what belongs to no living sandbox, and what nothing needs; says what went, or would go."""
    async with local_host(root) as host:
        removed = []
        if not is_dry:
            removed += await host.reconcile(adopts=True)
        garbage = await host.clear_garbage(keep_logs_s=keep_logs_s, is_dry=is_dry)
    return [*removed, *lines(garbage), *(f"kept: {doubt}" for doubt in garbage.doubts)]
