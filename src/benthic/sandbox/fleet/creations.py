"""What was promised for a key: written before a host is asked, so that asking again after any crash asks the same host.

A row without a sandbox counts against its project's quota until a host has answered or refused; one whose client never
came back is dropped after a while, and what its host may have made is an orphan that the host is told to close.
"""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from benthic.sandbox.fleet.projects import Projects
from benthic.sandbox.fleet.state import transaction
from benthic.sandbox.records import SandboxSpec


@dataclass(frozen=True, slots=True)
class Creation:
    """One promise."""

    project: str
    key: str
    host: str
    """Asked, or about to be."""
    sandbox_id: str | None

    @property
    def host_key(self) -> str:
        """The key as hosts see it: projects cannot collide there."""
        return f"{self.project}/{self.key}"


class Creations:
    """The table."""

    def __init__(self, sql: sqlite3.Connection, projects: Projects) -> None:
        self._sql, self._projects = sql, projects

    def reserve(self, project: str, key: str, spec: SandboxSpec, choose: Callable[[], str]) -> Creation:
        """The promise of a key, made now, and tied to a host, if it is new.

        Args:
            project: whose key it is.
            key: of the project's making.
            spec: counted against its quota.
            choose: the host to ask for a new one; what it raises is raised, and nothing is promised.

        Raises:
            QuotaExceeded: it is new, and the project has all that it may have.
        """
        with transaction(self._sql):
            known = self.get(project, key)
            if known is not None:
                return known
            self._projects.check(project, spec)
            host = choose()
            self._insert(project, key, spec, host)
        return Creation(project, key, host, None)

    def reserve_forks(self, project: str, keys: list[str], spec: SandboxSpec, host: str) -> None:
        """The promises of forks, those that are not yet made; all or none.

        Raises:
            QuotaExceeded: they are too many.
        """
        with transaction(self._sql):
            missing = [key for key in keys if self.get(project, key) is None]
            if not missing:
                return  # asked before, and asked again
            self._projects.check(project, spec, len(missing))
            for key in missing:
                self._insert(project, key, spec, host)

    def get(self, project: str, key: str) -> Creation | None:
        """A promise."""
        row = self._sql.execute(
            "SELECT host, sandbox_id FROM creations WHERE project = ? AND key = ?", (project, key)
        ).fetchone()
        return None if row is None else Creation(project, key, row[0], row[1])

    def ask(self, creation: Creation, host: str) -> None:
        """This host is asked next: the last one has refused for sure, or is lost."""
        self._sql.execute(
            "UPDATE creations SET host = ?, asked_s = ? WHERE project = ? AND key = ?",
            (host, time.time(), creation.project, creation.key),
        )

    def finish(self, project: str, key: str, spec: SandboxSpec, host: str, sandbox_id: str) -> None:
        """It was made, even if its promise was dropped meanwhile. Within the transaction that adds the sandbox."""
        self._insert(project, key, spec, host, sandbox_id)

    def drop(self, project: str, key: str) -> None:
        """It will not be made."""
        self._sql.execute("DELETE FROM creations WHERE project = ? AND key = ? AND sandbox_id IS NULL", (project, key))

    def drop_all(self, project: str, keys: list[str]) -> None:
        """None of them will be made."""
        with transaction(self._sql):
            for key in keys:
                self.drop(project, key)

    def drop_abandoned(self, before_s: float) -> int:
        """Drops promises that nobody has asked for since that time; says how many."""
        return self._sql.execute("DELETE FROM creations WHERE sandbox_id IS NULL AND asked_s < ?", (before_s,)).rowcount

    def _insert(self, project: str, key: str, spec: SandboxSpec, host: str, sandbox_id: str | None = None) -> None:
        self._sql.execute(
            "INSERT INTO creations (project, key, host, cpus, memory_bytes, asked_s, sandbox_id)"
            " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET sandbox_id = excluded.sandbox_id",
            (project, key, host, spec.limits.cpus, spec.limits.memory_bytes, time.time(), sandbox_id),
        )
