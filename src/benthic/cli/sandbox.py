"""`benthic sandbox`: sandboxes for agents, on this machine or of a fleet."""

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benthic.cli.sandbox_images import STATE_ROOT, image
from benthic.cli.sandbox_run import Kinds, Root, Url, run, shell
from benthic.cli.sandbox_serve import serve
from benthic.cli.sandbox_trajectory import blame, log, replay

if TYPE_CHECKING:
    from benthic.sandbox.host import SandboxInfo
    from benthic.sandbox.records import ProbeResult

DAY_S = 24 * 3600.0

sandbox = typer.Typer(
    name="sandbox",
    help="Sandboxes for agents: what this machine can do, running commands, logs, images, a fleet.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
sandbox.add_typer(image)
sandbox.command()(run)
sandbox.command()(shell)
sandbox.command()(serve)
sandbox.command()(log)
sandbox.command()(replay)
sandbox.command()(blame)


@sandbox.command()
def probe(
    kind: Annotated[list[Kinds] | None, typer.Option(help="Only this kind; may be given again.")] = None,
    root: Root = STATE_ROOT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """Start one sandbox with each driver, and say which work here and why others do not.

    The exit code is 1 if none works.
    """
    import asyncio

    from benthic.sandbox.probe import all_drivers, working_kinds
    from benthic.sandbox.probe import probe as probe_all

    kinds = {one.value for one in kind or Kinds}
    drivers = [driver for driver in all_drivers(root.expanduser()) if driver.kind in kinds]
    results = asyncio.run(probe_all(drivers))
    if as_json:
        typer.echo(json.dumps([_fields(result) for result in results], indent=2))
    else:
        for result in results:
            _print(result)
        working = working_kinds(results)
        typer.echo(f"\n{len(working)} of {len(kinds)} kinds work here{': ' if working else ''}{', '.join(working)}")
    if not any(result.is_working for result in results):
        raise typer.Exit(1)


@sandbox.command("ls")
def list_(
    root: Root = STATE_ROOT,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON list.")] = False,
) -> None:
    """List the sandboxes that are not closed."""
    import asyncio

    from benthic.cli.sandbox_hosts import opened_host
    from benthic.sandbox.wire import encode

    async def listed() -> "list[SandboxInfo]":
        async with opened_host(root, url) as host:
            return await host.sandboxes()

    infos = asyncio.run(listed())
    if as_json:
        typer.echo(json.dumps([encode(info) for info in infos], indent=2))
        return
    for info in infos:
        why = f" ({info.reason}{': ' + info.detail if info.detail else ''})" if info.reason else ""
        name = info.spec.image or ("programs of this host" if info.spec.kind == "function" else "tiny")
        typer.echo(
            f"{info.id}  {info.spec.kind:<10} {info.state:<9} {_age(time.time() - info.created_s):>6}  {name}{why}"
        )
    if not infos:
        typer.echo("no sandboxes")


@sandbox.command()
def close(
    sandbox_ids: Annotated[list[str] | None, typer.Argument(help="As `ls` lists them.")] = None,
    closes_all: Annotated[bool, typer.Option("--all", help="Every one that `ls` lists.")] = False,
    root: Root = STATE_ROOT,
    url: Url = None,
) -> None:
    """End sandboxes and remove all that they hold; their logs stay."""
    import asyncio

    from benthic.cli.sandbox_hosts import opened_host
    from benthic.errors import ConfigError

    if bool(sandbox_ids) == closes_all:
        raise ConfigError("name the sandboxes to close, or give --all; `benthic sandbox ls` lists them")

    async def closed() -> None:
        async with opened_host(root, url) as host:
            for sandbox_id in sandbox_ids or [info.id for info in await host.sandboxes()]:
                await host.close(sandbox_id)
                typer.echo(f"{sandbox_id} is closed")

    asyncio.run(closed())


@sandbox.command()
def gc(
    root: Root = STATE_ROOT,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what nothing needs, with sizes, and remove nothing.")
    ] = False,
    keep_logs: Annotated[
        float | None,
        typer.Option(help="Days: trajectories of sandboxes that ended before go too.", min=0, show_default="all"),
    ] = None,
) -> None:
    """Remove what belongs to no living sandbox, and the snapshots, layers and logged values that nothing needs."""
    import asyncio

    from benthic.cli.sandbox_hosts import clear

    keep_logs_s = None if keep_logs is None else keep_logs * DAY_S
    work = clear(root.expanduser(), keep_logs_s=keep_logs_s, is_dry=dry_run)
    removed = asyncio.run(work)
    for line in removed:
        typer.echo(line)
    typer.echo(f"{len(removed)} things {'would be ' if dry_run else ''}removed")


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _print(result: "ProbeResult") -> None:
    colour = typer.colors.GREEN if result.is_working else typer.colors.YELLOW
    verdict = typer.style(f"{'works' if result.is_working else 'no':<6}", fg=colour)
    took = f"{result.start_s * 1e3:7.0f} ms" if result.start_s is not None else f"{'-':>10}"
    typer.echo(f"{result.kind:<10} {result.driver:<12} {verdict} {took}  {result.detail}")


def _fields(result: "ProbeResult") -> dict[str, Any]:
    return {name: getattr(result, name) for name in ("kind", "driver", "is_working", "start_s", "detail")}
