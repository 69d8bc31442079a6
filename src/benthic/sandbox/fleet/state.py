"""What a gateway must not forget, in one SQLite file.

Every change is a transaction on disk before anybody is told of it. A gateway that is killed and started again, here or
on another machine that has the file, goes on where it was.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benthic.errors import ConfigError
from benthic.sandbox.errors import HostUnreachable

_LOCKED_S = 1.0
"""How long everybody waits for somebody else's lock, such as a backup's."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS hosts (
    name TEXT PRIMARY KEY, status TEXT NOT NULL, is_lost INTEGER NOT NULL DEFAULT 0,
    is_draining INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sandboxes (
    id TEXT PRIMARY KEY, project TEXT NOT NULL, host TEXT NOT NULL, spec TEXT NOT NULL,
    state TEXT NOT NULL, reason TEXT, detail TEXT NOT NULL DEFAULT '', created_s REAL NOT NULL,
    can_rebuild INTEGER NOT NULL DEFAULT 0, is_rebuilding INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS sandboxes_by_host ON sandboxes (host, state);
CREATE INDEX IF NOT EXISTS sandboxes_by_project ON sandboxes (project, state);
-- one row a key; sandbox_id is null until a host has answered
CREATE TABLE IF NOT EXISTS creations (
    project TEXT NOT NULL, key TEXT NOT NULL, host TEXT NOT NULL, sandbox_id TEXT, cpus REAL NOT NULL,
    memory_bytes INTEGER NOT NULL, asked_s REAL NOT NULL, PRIMARY KEY (project, key)
);
CREATE INDEX IF NOT EXISTS creations_pending ON creations (project) WHERE sandbox_id IS NULL;
CREATE TABLE IF NOT EXISTS snapshots (id TEXT PRIMARY KEY, project TEXT NOT NULL, host TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tokens (
    digest TEXT PRIMARY KEY, project TEXT NOT NULL, label TEXT NOT NULL, is_admin INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS quotas (
    project TEXT PRIMARY KEY, max_sandboxes INTEGER, max_cpus REAL, max_memory_bytes INTEGER
);
"""


class _State(sqlite3.Connection):
    """A connection whose file may be locked or full for a while: whoever asks again may have more luck."""

    _is_closed = False

    def close(self) -> None:
        """Closes it; who comes later is told."""
        self._is_closed = True
        super().close()

    def execute(self, statement: str, values: Any = (), /) -> sqlite3.Cursor:
        """As ever.

        Raises:
            HostUnreachable: the file cannot be read or written now.
        """
        if self._is_closed:
            raise HostUnreachable("the gateway is going down; ask again when it is back")
        try:
            return super().execute(statement, values)
        except sqlite3.OperationalError as error:
            raise HostUnreachable(f"the gateway's state cannot be read or written now ({error}); ask again") from error


def open_state(path: Path) -> sqlite3.Connection:
    """The file, made if it is not there.

    Raises:
        ConfigError: it cannot be one.
    """
    try:
        sql = sqlite3.connect(path, isolation_level=None, timeout=_LOCKED_S, factory=_State)
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute("PRAGMA synchronous = FULL")
        sql.executescript(_SCHEMA)
    except (sqlite3.Error, HostUnreachable) as error:
        raise ConfigError(f"state ({path}) cannot be the gateway's SQLite file: {error}") from None
    path.chmod(0o600)
    return sql


@contextmanager
def transaction(sql: sqlite3.Connection) -> Iterator[None]:
    """All or nothing of what happens inside, and nobody else writes meanwhile."""
    sql.execute("BEGIN IMMEDIATE")
    try:
        yield
        sql.execute("COMMIT")
    except BaseException:
        if sql.in_transaction:  # a full disk may have ended it already
            sql.execute("ROLLBACK")
        raise
