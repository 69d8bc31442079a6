"""This terminal joined to a shell in a sandbox: bytes both ways, sizes as they change, the terminal as it was after."""

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import typer

from benthic.cli.sandbox_hosts import opened_host, said_if_slow
from benthic.sandbox.process import Process
from benthic.sandbox.records import SandboxSpec
from benthic.sandbox.sandbox import Sandbox

_SHELL = "if command -v bash >/dev/null; then exec bash -i; else exec sh -i; fi"
_READ_BYTES = 4096


async def open_shell(spec: SandboxSpec, sandbox_id: str | None, *, keep: bool, root: Path, url: str | None) -> int:
    """Until the shell inside has ended; returns its exit code."""
    async with opened_host(root, url) as host:
        opening = Sandbox.attach(sandbox_id, host=host) if sandbox_id else Sandbox.create_from(spec, host=host)
        async with said_if_slow(spec.kind):
            sandbox = await opening
        after = "stays" if keep or sandbox_id else "is closed"
        try:
            typer.echo(f"sandbox {sandbox.id} ({sandbox.kind}); it {after} when the shell ends", err=True)
            size = shutil.get_terminal_size()
            process = await sandbox.spawn(_SHELL, terminal=(size.lines, size.columns), keeps_input=True)
            with _raw(sys.stdin.fileno()):
                return await _join(process)
        finally:
            if sandbox_id is None and not keep:
                await sandbox.close()


async def _join(process: Process) -> int:
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    descriptor = sys.stdin.fileno()

    def read() -> None:
        try:
            data = os.read(descriptor, _READ_BYTES)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            loop.remove_reader(descriptor)  # else it would be told of its end for ever
        typed.put_nowait(data)

    loop.add_reader(descriptor, read)
    resized = asyncio.Event()
    loop.add_signal_handler(signal.SIGWINCH, resized.set)
    chores = [asyncio.create_task(_feed(process, typed)), asyncio.create_task(_follow_size(process, resized))]
    try:
        async for chunk in process.output():
            sys.stdout.buffer.write(chunk.data)
            sys.stdout.buffer.flush()
        result = await process.wait()
    finally:
        loop.remove_reader(descriptor)
        loop.remove_signal_handler(signal.SIGWINCH)
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)
    return result.returncode if result.returncode is not None and result.returncode >= 0 else 1


async def _feed(process: Process, typed: "asyncio.Queue[bytes]") -> None:
    while data := await typed.get():
        await process.feed(data)
    await process.close_input()


async def _follow_size(process: Process, resized: asyncio.Event) -> None:
    while True:
        await resized.wait()
        resized.clear()
        size = shutil.get_terminal_size()
        await process.resize(size.lines, size.columns)


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """Keys go inside as they are typed, control-C too."""
    before = termios.tcgetattr(descriptor)
    tty.setraw(descriptor)
    try:
        yield
    finally:
        with suppress(termios.error):  # it is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
