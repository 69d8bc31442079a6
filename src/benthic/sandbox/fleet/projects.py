"""Who may ask, and for how much: tokens that name a project, and each project's quota.

Only a digest of a token is kept. A quota counts what lives and what is being made, in the transaction that reserves
it, so that a race of requests cannot pass it.
"""

import hashlib
import secrets
import sqlite3
from dataclasses import dataclass

from benthic.sandbox.errors import QuotaExceeded
from benthic.sandbox.records import SandboxSpec

DEFAULT_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request."""

    project: str
    is_admin: bool = False
    """Sees every project, hosts, and may drain them."""

    @property
    def sees(self) -> str | None:
        """The project whose sandboxes it sees; None: all."""
        return None if self.is_admin else self.project


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a project may have at once; None is without limit."""

    max_sandboxes: int | None = None
    max_cpus: float | None = None
    max_memory_bytes: int | None = None


class Projects:
    """Tokens and quotas."""

    def __init__(self, sql: sqlite3.Connection) -> None:
        self._sql = sql

    def add_token(self, project: str, *, label: str = "", is_admin: bool = False) -> str:
        """A new token; it is shown this once."""
        token = "bsk-" + secrets.token_urlsafe(32)
        self._sql.execute(
            "INSERT INTO tokens (digest, project, label, is_admin) VALUES (?, ?, ?, ?)",
            (_digest(token), project, label, is_admin),
        )
        return token

    def remove_token(self, token: str) -> None:
        """It opens nothing from now on."""
        self._sql.execute("DELETE FROM tokens WHERE digest = ?", (_digest(token),))

    def caller(self, token: str) -> Caller | None:
        """Whose token it is."""
        found = self._sql.execute("SELECT project, is_admin FROM tokens WHERE digest = ?", (_digest(token),)).fetchone()
        return None if found is None else Caller(found[0], bool(found[1]))

    def set_quota(self, project: str, quota: Quota) -> None:
        """From now on; what lives stays."""
        self._sql.execute(
            "INSERT OR REPLACE INTO quotas (project, max_sandboxes, max_cpus, max_memory_bytes) VALUES (?, ?, ?, ?)",
            (project, quota.max_sandboxes, quota.max_cpus, quota.max_memory_bytes),
        )

    def quota(self, project: str) -> Quota:
        """A project's, without limits unless it was set."""
        row = self._sql.execute(
            "SELECT max_sandboxes, max_cpus, max_memory_bytes FROM quotas WHERE project = ?", (project,)
        ).fetchone()
        return Quota() if row is None else Quota(max_sandboxes=row[0], max_cpus=row[1], max_memory_bytes=row[2])

    def check(self, project: str, spec: SandboxSpec, count: int = 1) -> None:
        """Whether a project may have so many more of a spec. Called inside the transaction that reserves them.

        Raises:
            QuotaExceeded: it may not.
        """
        assert self._sql.in_transaction
        quota, (num_sandboxes, cpus, memory_bytes) = self.quota(project), self._used(project)
        for what, used, wanted, most in (
            ("sandboxes", num_sandboxes, count, quota.max_sandboxes),
            ("processors", cpus, count * spec.limits.cpus, quota.max_cpus),
            ("bytes of memory", memory_bytes, count * spec.limits.memory_bytes, quota.max_memory_bytes),
        ):
            if most is not None and used + wanted > most:
                raise QuotaExceeded(
                    f"project {project!r} has {used:g} {what} and asks for {wanted:g} more; its quota is {most:g}"
                )

    def _used(self, project: str) -> tuple[int, float, int]:
        """Sandboxes, processors and bytes of what lives and of what is being made."""
        row = self._sql.execute(
            "SELECT count(*), coalesce(sum(c.cpus), 0), coalesce(sum(c.memory_bytes), 0) FROM creations c"
            " LEFT JOIN sandboxes s ON s.id = c.sandbox_id"
            " WHERE c.project = ? AND (s.id IS NULL OR s.state != 'dead')",
            (project,),
        ).fetchone()
        return row[0], row[1], row[2]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
