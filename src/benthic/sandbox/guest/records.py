"""What travels between the host and init beside a command and its result."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from benthic.sandbox.records import MIB, Reason

RLIMITS = ("as", "core", "cpu", "data", "fsize", "memlock", "msgqueue", "nice", "nofile", "nproc", "rtprio", "stack")
"""Names that `JobSetup.rlimits` takes: those of setrlimit(2) in small letters."""


class Terminal(NamedTuple):
    """The size of a pseudo-terminal."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup:
    """What holds for every command of a sandbox; init remembers it, the last one given counts for what starts later."""

    uid: int = 1000
    """The ordinary user inside. Commands never keep a capability, whoever runs them."""
    gid: int = 1000
    env: tuple[tuple[str, str], ...] = ()
    """The whole environment; a command may add to it."""
    cwd: str = "/"
    rlimits: tuple[tuple[str, int], ...] = (("core", 0),)
    """Soft and hard limit alike; names are those of `RLIMITS`."""
    seccomp: bytes = b""
    """A filter as `struct sock_filter[]`, loaded just before a command's program; empty: none."""
    output_bytes: int = MIB
    """Kept of each stream of a command that names no limit of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """One line of init's job table."""

    job: str
    state: Literal["running", "ended"]
    has_background: bool
    """Something that the command started lives on after its end."""
    stdout_bytes: int
    """Printed so far, kept or not."""
    stderr_bytes: int
    fed_bytes: int
    """Input that init has taken so far."""
    returncode: int | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What init says of itself on a new connection."""

    boot_id: str
    """Random, drawn when init started: another one means other jobs."""
    is_configured: bool
    pid: int = 1
