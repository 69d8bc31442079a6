"""Which call changed a path, and how: the history of one file of a sandbox.

The log says what was asked, not what a command did to the files. So the calls are run again in a fresh sandbox, and
the path is looked at after each one that can have changed it.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from benthic.sandbox.host import Host, Request
from benthic.sandbox.trajectory.reader import Trajectory
from benthic.sandbox.trajectory.replay import Player, fresh


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One call that changed a path."""

    seq: int
    verb: str
    what: Literal["made", "changed", "removed"]
    arguments: dict[str, Any]
    """Of the call."""
    size_bytes: int | None = None
    """Afterwards."""


async def blame(host: Host, log: Trajectory, path: str) -> list[Change]:
    """Every change of a path, oldest first; the last one is to blame for what it is now.

    What a spawned command does is counted to the call in whose time it was seen.

    Raises:
        StartFailed, NotSupported: the fresh sandbox did not come up.
        SandboxDied: it died on the way.
    """
    changes: list[Change] = []
    async with fresh(host, log) as player:
        before = await _looked_at(player, path)
        for entry in log.entries():
            await player.ends_before(entry.seq)
            if await player.play(entry) is None or not entry.request.is_mutating:
                continue
            after = await _looked_at(player, path)
            if after != before:
                what: Literal["made", "changed", "removed"]
                what = "made" if before is None else "removed" if after is None else "changed"
                size = after[1] if after else None
                arguments = entry.request.arguments
                changes.append(
                    Change(seq=entry.seq, verb=entry.request.verb, what=what, arguments=arguments, size_bytes=size)
                )
            before = after
    return changes


async def _looked_at(player: Player, path: str) -> tuple[str, int, int, str] | None:
    """Type, size, mode and content; None if it is not there."""
    stat = await player.send(Request(verb="stat", arguments={"path": path, "user": "root"}))
    if stat.error is not None:
        return None
    facts = stat.value
    content = facts.get("target") or ""
    if facts["type"] == "file":
        read = await player.send(Request(verb="read", arguments={"path": path, "user": "root"}))
        content = hashlib.blake2b(read.data).hexdigest() if read.error is None else "unreadable"
    size = 0 if facts["type"] == "folder" else facts["size_bytes"]
    return facts["type"], size, facts["mode"], content
