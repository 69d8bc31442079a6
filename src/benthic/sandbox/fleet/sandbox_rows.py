"""The gateway's list of sandboxes: whose each is, which host has it, and where it is in its life."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benthic.sandbox.errors import SandboxDied, UnknownSandbox
from benthic.sandbox.host import SandboxInfo
from benthic.sandbox.records import Reason, SandboxSpec, SnapshotRef, State
from benthic.sandbox.wire import decode, encode

_COLUMNS = "id, project, host, spec, state, reason, detail, created_s, can_rebuild, is_rebuilding"


@dataclass(frozen=True, slots=True)
class SandboxRow:
    """One sandbox."""

    id: str
    project: str
    host: str
    spec_json: str
    state: State
    reason: Reason | None
    detail: str
    created_s: float
    can_rebuild: bool
    is_rebuilding: bool
    """Its host is lost, and another one makes it anew."""

    @property
    def spec(self) -> SandboxSpec:
        """What it was made from."""
        return decode(SandboxSpec, json.loads(self.spec_json))

    def info(self) -> SandboxInfo:
        """What is known without asking its host."""
        return SandboxInfo(
            id=self.id,
            spec=self.spec,
            state=self.state,
            reason=self.reason,
            detail=self.detail,
            created_s=self.created_s,
        )

    def must_live(self) -> None:
        """Nothing, if it lives.

        Raises:
            SandboxDied: it does not.
        """
        if self.state is State.DEAD:
            raise SandboxDied(self.id, self.reason or Reason.CRASHED, self.detail)


class SandboxRows:
    """The table. The dead stay dead, whatever comes later."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql

    def add(
        self,
        info: SandboxInfo,
        *,
        project: str,
        host: str,
        can_rebuild: bool = False,
    ) -> None:
        """A new one."""
        self._sql.execute(
            f"INSERT OR IGNORE INTO sandboxes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
            (
                *(info.id, project, host, json.dumps(encode(info.spec)), info.state, info.reason),
                *(info.detail, info.created_s, can_rebuild),
            ),
        )

    def get(self, sandbox_id: str, project: str | None) -> SandboxRow:
        """One of a project's, dead or alive; None sees all.

        Raises:
            UnknownSandbox: there is none, as far as this project may know.
        """
        row = next(self._select("id = ?", sandbox_id), None)
        if row is None or project not in (None, row.project):
            raise UnknownSandbox(f"sandbox {sandbox_id!r} is unknown here; it may belong to another project")
        return row

    def alive(self, *, project: str | None = None, host: str | None = None) -> list[SandboxRow]:
        """Those that have not ended, of a project, of a host, or all."""
        chosen = [(name, value) for name, value in (("project", project), ("host", host)) if value is not None]
        where = " AND ".join(["state != 'dead'", *(f"{name} = ?" for name, _ in chosen)])
        return list(self._select(where, *(value for _, value in chosen)))

    def set_state(self, sandbox_id: str, state: State, reason: Reason | None = None, detail: str = "") -> None:
        """Where it is in its life."""
        self._sql.execute(
            "UPDATE sandboxes SET state = ?, reason = ?, detail = ? WHERE id = ? AND state != 'dead'",
            (state, reason, detail, sandbox_id),
        )

    def begin_rebuild(self, sandbox_id: str, detail: str) -> None:
        """Its host is lost, and from now on its word counts no more."""
        self._sql.execute(
            "UPDATE sandboxes SET is_rebuilding = 1, detail = ? WHERE id = ? AND state != 'dead'", (detail, sandbox_id)
        )

    def revive(self, sandbox_id: str) -> None:
        """Its owner wants it made again: the one way back from the dead."""
        self._sql.execute(
            "UPDATE sandboxes SET state = 'starting', is_rebuilding = 1, reason = NULL WHERE id = ?", (sandbox_id,)
        )

    def move(self, sandbox_id: str, host: str, detail: str) -> None:
        """It was rebuilt over there."""
        self._sql.execute(
            "UPDATE sandboxes SET host = ?, state = 'running', is_rebuilding = 0, reason = NULL, detail = ?"
            " WHERE id = ? AND state != 'dead'",
            (host, detail, sandbox_id),
        )

    def is_left_behind(self, sandbox_id: str, host: str) -> bool:
        """Whether what that host has under this name is no longer wanted: it has ended, or lives elsewhere now."""
        row = next(self._select("id = ?", sandbox_id), None)
        if row is None or row.is_rebuilding:  # while it is, whoever has it may be the one that goes on
            return False
        return row.state is State.DEAD or row.host != host

    def add_snapshot(self, ref: SnapshotRef, project: str, host: str) -> None:
        """Whose it is, and which host has it."""
        self._sql.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (_whole(ref), project, host))

    def home_of_snapshot(self, ref: SnapshotRef, project: str) -> str | None:
        """The host that has a project's snapshot; None if nobody here knows it, exactly as it is."""
        row = self._sql.execute(
            "SELECT host FROM snapshots WHERE id = ? AND project = ?", (_whole(ref), project)
        ).fetchone()
        return None if row is None else str(row[0])

    def num_by_state(self) -> dict[str, int]:
        """How many there are in each state."""
        return dict(self._sql.execute("SELECT state, count(*) FROM sandboxes GROUP BY state").fetchall())

    def _select(self, where: str, *values: Any) -> Iterator[SandboxRow]:
        for row in self._sql.execute(f"SELECT {_COLUMNS} FROM sandboxes WHERE {where}", values).fetchall():
            id_, project, host, spec, state, reason, detail, created_s, can_rebuild, is_rebuilding = row
            yield SandboxRow(
                *(id_, project, host, spec, State(state), Reason(reason) if reason else None),
                *(detail, created_s, bool(can_rebuild), bool(is_rebuilding)),
            )


def _whole(ref: SnapshotRef) -> str:
    """All that a snapshot's record says: under its id a client could else name the layers of somebody else's."""
    return json.dumps(encode(ref), sort_keys=True)
