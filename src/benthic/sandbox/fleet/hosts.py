"""The hosts of a fleet, by their heartbeats. Lost ones, and a host's own facts, are on disk; the beats are not.

After a start every known host counts as just heard of: a gateway that was away for long has missed their heartbeats,
they have not missed it.
"""

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from benthic.errors import RequestError
from benthic.sandbox.errors import HostUnreachable
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.fleet.placement import Candidate
from benthic.sandbox.fleet.status import HostStatus, Load
from benthic.sandbox.records import SandboxSpec
from benthic.sandbox.wire import decode, encode


@dataclass(slots=True)
class HostEntry:
    """One host now."""

    status: HostStatus
    seen_s: float
    """When its last heartbeat came, on the clock of `Hosts`."""
    host: RemoteHost
    """Its agent."""
    is_lost: bool = False
    is_draining: bool = False
    load: Load = Load()
    """As last told, and what was placed there since."""
    _waiting: set[asyncio.Timeout] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def asked(self) -> AsyncIterator[None]:
        """Inside, its answer is waited for, until it is lost: a link that is cut says nothing for a long time.

        Raises:
            HostUnreachable: it was lost meanwhile.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._waiting.add(limit)
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise HostUnreachable(f"host {self.status.name} was lost while it was asked; ask again") from None
        finally:
            self._waiting.discard(limit)

    def lose(self) -> None:
        """It is lost, and nobody waits for it any more."""
        self.is_lost = True
        for limit in self._waiting:
            limit.reschedule(asyncio.get_running_loop().time())

    @property
    def state(self) -> str:
        """In a word."""
        return "lost" if self.is_lost else "draining" if self.is_draining else "alive"


class Hosts:
    """All hosts that ever sent a heartbeat.

    Args:
        sql: the gateway's file.
        token: the fleet's own.
        clock: seconds that never go back.
    """

    def __init__(self, sql: sqlite3.Connection, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._sql, self._token, self._clock = sql, token, clock
        self._entries: dict[str, HostEntry] = {}
        for status, is_lost, is_draining in sql.execute("SELECT status, is_lost, is_draining FROM hosts").fetchall():
            entry = self._enter(decode(HostStatus, json.loads(status)))
            entry.is_lost, entry.is_draining = bool(is_lost), bool(is_draining)

    async def aclose(self) -> None:
        """Closes the connections."""
        for entry in self._entries.values():
            await entry.host.aclose()

    def see(self, status: HostStatus) -> bool:
        """A heartbeat has come; says whether the host had been lost."""
        entry = self._entries.get(status.name)
        is_new = entry is None or entry.is_lost or _facts(entry.status) != _facts(status)
        if is_new:
            self._sql.execute(
                "INSERT INTO hosts (name, status) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET status = excluded.status, is_lost = 0",
                (status.name, json.dumps(encode(_facts(status)))),
            )
        if entry is None:
            entry = self._enter(status)
        elif entry.status.url != status.url:
            entry.host = RemoteHost(status.url, token=self._token, patience_s=0.0)
        was_lost, entry.is_lost = entry.is_lost, False
        entry.status, entry.seen_s, entry.load = status, self._clock(), status.load
        return was_lost

    def silent(self, since_s: float) -> list[str]:
        """Hosts that have not been heard of for so long and are not lost yet."""
        horizon = self._clock() - since_s
        return [name for name, entry in self._entries.items() if not entry.is_lost and entry.seen_s < horizon]

    def lose(self, name: str) -> None:
        """It is lost."""
        self._sql.execute("UPDATE hosts SET is_lost = 1 WHERE name = ?", (name,))
        self._entries[name].lose()

    def drain(self, name: str, is_draining: bool) -> None:
        """Whether it takes no more sandboxes."""
        self.get(name).is_draining = is_draining
        self._sql.execute("UPDATE hosts SET is_draining = ? WHERE name = ?", (is_draining, name))

    def get(self, name: str) -> HostEntry:
        """One.

        Raises:
            RequestError: it never sent a heartbeat.
        """
        if name not in self._entries:
            raise RequestError(f"host {name!r} is unknown; known are {', '.join(sorted(self._entries)) or 'none'}")
        return self._entries[name]

    def all(self) -> list[HostEntry]:
        """All, by name."""
        return [self._entries[name] for name in sorted(self._entries)]

    def candidates(self, spec: SandboxSpec) -> list[Candidate]:
        """All, as placement sees them."""
        return [
            Candidate(
                name=name,
                is_open=not entry.is_lost and not entry.is_draining,
                can_run=entry.status.can_run(spec),
                capacity=entry.status.capacity,
                load=entry.load,
            )
            for name, entry in sorted(self._entries.items())
        ]

    def promise(self, name: str, spec: SandboxSpec, count: int = 1) -> None:
        """So many more were placed there; its next heartbeat says so itself."""
        entry = self.get(name)
        entry.load = entry.load.with_more(spec, count)

    def _enter(self, status: HostStatus) -> HostEntry:
        entry = HostEntry(
            status, self._clock(), RemoteHost(status.url, token=self._token, patience_s=0.0), load=status.load
        )
        self._entries[status.name] = entry
        return entry


def _facts(status: HostStatus) -> HostStatus:
    """What of a heartbeat is worth a write to disk."""
    return replace(status, load=Load(), free_memory_bytes=0, sandboxes=())
