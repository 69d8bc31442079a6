"""`benthic sandbox log`: what was done in a sandbox, call by call."""

import json
import time
from typing import Annotated, Any

import typer

from benthic.cli.sandbox_images import STATE_ROOT
from benthic.cli.sandbox_run import Root, Url

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


def _line(record: dict[str, Any]) -> str:
    """The place, what happened, the verb, and the facts as far as a line goes."""
    place = record.get("seq", "")
    facts = record.get("arguments") or record.get("value") or {}
    shown = {name: value for name, value in facts.items() if value not in (None, "", 0, {})}
    wall = time.strftime("%H:%M:%S", time.localtime(record["at"]))
    return f"{wall} {place:>5} {record['type']:<9} {record.get('verb', ''):<8} {json.dumps(shown)}"[:200]
