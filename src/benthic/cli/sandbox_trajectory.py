"""`benthic sandbox log`, `replay` and `blame`: what was done in a sandbox, and whether it still comes true."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benthic.cli.sandbox_images import STATE_ROOT
from benthic.cli.sandbox_run import Root, Url

if TYPE_CHECKING:
    from benthic.sandbox.trajectory import Change, Report, Step

LINE_LEN = 200
Id = Annotated[str, typer.Argument(help="Of a sandbox, also of one that is gone.")]


def log(
    sandbox_id: Id,
    root: Root = STATE_ROOT,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, with everything.")] = False,
) -> None:
    """Print a sandbox's trajectory, oldest first."""
    import asyncio

    from benthic.cli.sandbox_hosts import opened_host

    async def records() -> list[dict[str, Any]]:
        async with opened_host(root, url) as host:
            return await host.log(sandbox_id)

    for record in asyncio.run(records()):
        typer.echo(json.dumps(record) if as_json else _line(record))


def replay(
    sandbox_id: Id,
    verify: Annotated[
        bool, typer.Option("--verify", help="Ask for the same bytes: no allowance for times, dates and process ids.")
    ] = False,
    stop: Annotated[bool, typer.Option("--stop", help="End with the first difference.")] = False,
    root: Root = STATE_ROOT,
) -> None:
    """Run a trajectory again in a fresh sandbox, and say call by call whether it came to the same.

    The exit code is 1 if a call came to something else.
    """
    import asyncio

    report = asyncio.run(_replayed(root.expanduser(), sandbox_id, verify, stop))
    different = report.first_difference
    exact = sum(step.sameness == "exact" for step in report.steps)
    typer.echo(f"{len(report.steps)} calls run again: {exact} came to the same bytes")
    if report.num_open:
        typer.echo(f"{report.num_open} calls have no answer in the log and were not compared")
    if different is not None:
        typer.echo(f"the first difference is call {different.seq} ({different.verb}): {different.detail}")
        raise typer.Exit(1)


def blame(sandbox_id: Id, path: Annotated[str, typer.Argument(help="A path inside.")], root: Root = STATE_ROOT) -> None:
    """Say which calls of a trajectory made, changed or removed a path. They are run again to find out."""
    import asyncio

    changes = asyncio.run(_blamed(root.expanduser(), sandbox_id, path))
    for change in changes:
        size = f", {change.size_bytes} bytes" if change.size_bytes is not None else ""
        typer.echo(f"{change.seq:>5} {change.what:<8} by {change.verb}{size}: {json.dumps(change.arguments)}"[:200])
    if not changes:
        typer.echo(f"no call changed {path}")


async def _replayed(root: Path, sandbox_id: str, is_exact: bool, stops: bool) -> "Report":
    from benthic.sandbox.probe import local_host
    from benthic.sandbox.trajectory import verify
    from benthic.sandbox.trajectory.compare import NORMALISERS

    def show(step: "Step") -> None:
        typer.echo(f"{step.seq:>5} {step.verb:<8} {step.sameness:<10} {step.detail}".rstrip())

    async with local_host(root) as host:
        normalisers = () if is_exact else NORMALISERS
        return await verify(host, host.trajectory(sandbox_id), normalisers=normalisers, observe=show, stops=stops)


async def _blamed(root: Path, sandbox_id: str, path: str) -> "list[Change]":
    from benthic.sandbox.probe import local_host
    from benthic.sandbox.trajectory import blame as find_changes

    async with local_host(root) as host:
        return await find_changes(host, host.trajectory(sandbox_id), path)


def _line(record: dict[str, Any]) -> str:
    """The place, what happened, the verb, and the facts as far as a line goes."""
    place = record.get("seq", "")
    facts = record.get("arguments") or record.get("value") or _noted(record)
    shown = {name: value for name, value in facts.items() if value not in (None, "", 0, {})}
    wall = time.strftime("%H:%M:%S", time.localtime(record["at"]))
    what = record.get("verb") or record.get("what") or record.get("error") or ""
    line = f"{wall} {place:>5} {record['type']:<6} {what:<9} {json.dumps(shown) if shown else ''}".rstrip()
    return line if len(line) <= LINE_LEN else f"{line[: LINE_LEN - 3]}..."


def _noted(record: dict[str, Any]) -> dict[str, Any]:
    """What a record says beside a call."""
    known = ("seq", "at", "type", "what", "num_bytes", "format", "arguments", "value", "error", "hash", "verb")
    return {name: value for name, value in record.items() if name not in known}
