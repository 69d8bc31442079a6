"""`benthic sandbox run` and `shell`: a command, or a terminal, in a sandbox of its own."""

import shlex
import signal
import sys
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benthic.cli.sandbox_images import STATE_ROOT
from benthic.errors import ConfigError

if TYPE_CHECKING:
    from benthic.sandbox.records import Command, Result, SandboxSpec

MIB = 1 << 20
ENDED_FROM_OUTSIDE = 124
"""What `timeout` of coreutils says, too."""
NO_PROGRAM = 127


class Kinds(StrEnum):
    """Kinds of sandboxes, as an option takes them."""

    FUNCTION = "function"
    CONTAINER = "container"
    MICROVM = "microvm"
    VM = "vm"


Root = Annotated[Path, typer.Option(help="Where this machine keeps its sandboxes' state.")]
Url = Annotated[
    str | None,
    typer.Option(help="A gateway or agent instead of this machine; its token is $BENTHIC_SANDBOX_TOKEN."),
]
Kind = Annotated[Kinds, typer.Option(help="What it is isolated by.")]
Image = Annotated[str | None, typer.Option(help="What it starts from.", show_default="the smallest of the kind")]
Memory = Annotated[int, typer.Option(help="MiB of all its processes.", min=16)]
Cpus = Annotated[float, typer.Option(help="Processors' worth of time.", min=0.01)]
Allow = Annotated[list[str] | None, typer.Option(help="A destination, host:port; may be given again.")]
Driver = Annotated[str | None, typer.Option(help="One driver of the kind, such as crun, runc or gvisor.")]


def run(
    command: Annotated[
        list[str], typer.Argument(help="The program and its arguments, behind `--`.", metavar="COMMAND")
    ],
    kind: Kind = Kinds.FUNCTION,
    image: Image = None,
    memory: Memory = 512,
    cpus: Cpus = 1.0,
    allow: Allow = None,
    driver: Driver = None,
    timeout: Annotated[float, typer.Option(help="Seconds.", min=0.1)] = 60.0,
    upload: Annotated[Path | None, typer.Option(help="A file or folder to put into /work first.", exists=True)] = None,
    has_stdin: Annotated[
        bool, typer.Option("--stdin", help="Read this command's input to its end, and pass it on.")
    ] = False,
    root: Root = STATE_ROOT,
    url: Url = None,
) -> None:
    """Run one command in a new sandbox, print what it prints, and end with its exit code."""
    from benthic.cli.sandbox_hosts import run_until_signalled
    from benthic.sandbox.calling import as_command

    spec = _spec(kind, image, memory, cpus, allow, driver)
    asked = as_command(command, timeout_s=timeout, stdin=sys.stdin.buffer.read() if has_stdin else b"")
    raise typer.Exit(run_until_signalled(_run(spec, asked, upload, root.expanduser(), url)))


def shell(
    sandbox_id: Annotated[str | None, typer.Argument(help="One that is there; without it, a new one.")] = None,
    kind: Kind = Kinds.CONTAINER,
    image: Image = None,
    memory: Memory = 512,
    cpus: Cpus = 1.0,
    allow: Allow = None,
    driver: Driver = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave a new one alive afterwards.")] = False,
    root: Root = STATE_ROOT,
    url: Url = None,
) -> None:
    """Open a terminal in a sandbox. A new one is closed when its shell ends."""
    from benthic.cli.sandbox_hosts import run_until_signalled
    from benthic.cli.sandbox_terminal import open_shell

    if not sys.stdin.isatty():
        raise ConfigError("stdin is no terminal; `benthic sandbox run` runs a command without one")
    spec = _spec(kind, image, memory, cpus, allow, driver)
    raise typer.Exit(run_until_signalled(open_shell(spec, sandbox_id, keep=keep, root=root.expanduser(), url=url)))


def _spec(
    kind: Kinds, image: str | None, memory: int, cpus: float, allow: list[str] | None, driver: str | None
) -> "SandboxSpec":
    from benthic.sandbox.records import Limits, Network, SandboxSpec

    try:
        network = Network.allow(*(allow or ()))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    limits = Limits(memory_bytes=memory * MIB, cpus=cpus)
    return SandboxSpec(kind=kind.value, image=image, limits=limits, network=network, driver=driver)


async def _run(spec: "SandboxSpec", command: "Command", upload: Path | None, root: Path, url: str | None) -> int:
    from benthic.cli.sandbox_hosts import opened_host, said_if_slow
    from benthic.sandbox.errors import CommandTimeout
    from benthic.sandbox.records import Chunk
    from benthic.sandbox.sandbox import Sandbox

    async with opened_host(root, url) as host, AsyncExitStack() as stack:
        async with said_if_slow(spec.kind):
            sandbox = await stack.enter_async_context(Sandbox.create_from(spec, host=host))
        if upload is not None:
            await sandbox.upload(upload, spec.cwd)
        try:
            async for item in sandbox.stream(command):
                if isinstance(item, Chunk):
                    stream = sys.stdout if item.stream == "stdout" else sys.stderr
                    stream.buffer.write(item.data)
                    stream.buffer.flush()
                else:
                    result = item
        except CommandTimeout as error:
            typer.echo(str(error), err=True)
            return ENDED_FROM_OUTSIDE
    _explain(result, command, spec)
    code = result.returncode
    if code is None:
        return ENDED_FROM_OUTSIDE
    return code if code >= 0 else 128 - code


def _explain(result: "Result", command: "Command", spec: "SandboxSpec") -> None:
    """Says what a code alone does not."""
    from benthic.sandbox.records import Reason

    if result.reason is Reason.OUT_OF_MEMORY:
        limit = spec.limits.memory_bytes // MIB
        typer.echo(f"memory ran out at {limit} MiB (code {result.returncode}); allow more with --memory", err=True)
    elif result.returncode is None or result.returncode < 0:
        typer.echo(f"ended by {_signal_name(result.returncode)} ({result.reason})", err=True)
    elif (
        result.returncode == NO_PROGRAM
        and command.argv is not None
        and len(command.argv) == 1
        and " " in command.argv[0]
    ):
        typer.echo(f"a shell's text is run by: -- sh -c {shlex.quote(command.argv[0])}", err=True)


def _signal_name(code: int | None) -> str:
    try:
        return signal.Signals(-(code or 0)).name
    except ValueError:
        return f"signal {-code}" if code else "its host"
