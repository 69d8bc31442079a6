"""The records of the sandbox room: what is asked of a sandbox, and what it answers.

All are plain data with a JSON form (`wire.py`), so the same record travels in process, to a host's agent, and into
the trajectory log. Paths inside a sandbox are absolute POSIX paths.
"""

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Literal, NamedTuple

Kind = Literal["function", "container", "microvm", "vm"]
KINDS: tuple[Kind, ...] = ("function", "container", "microvm", "vm")
MIB = 1 << 20
MOST = 1e15
"""No limit is larger: sums of them stay exact."""
MOST_S = 1e9
"""Thirty years."""


class State(StrEnum):
    """Where a sandbox is in its life. DEAD is final, and has a reason."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


class Reason(StrEnum):
    """Why a command or a sandbox ended, decided by the host wherever it can."""

    EXITED = "exited"
    """The program ended by itself; `returncode` says how."""
    SIGNALLED = "signalled"
    """A signal that nobody outside sent."""
    TIMEOUT = "timeout"
    QUIET = "quiet"
    """No output for as long as `quiet_timeout_s`."""
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_PROCESSES = "out_of_processes"
    """It asked for more processes than it may have; only a kind that does not survive that ends so (gVisor)."""
    KILLED = "killed"
    """By the caller: `Process.kill`, `close`."""
    EXPIRED = "expired"
    """Its lease or time to live ran out."""
    HOST_LOST = "host_lost"
    CRASHED = "crashed"
    """Its first process or its virtual machine ended, and nobody asked for that."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one sandbox may use. A command's own time is its caller's; these hold for the sandbox as a whole."""

    cpus: float = 1.0
    """Processors' worth of time (a quota, not a reservation)."""
    cpu_class: Literal["latency", "batch"] = "latency"
    """`batch` gives way to `latency` wherever both want the processor."""
    memory_bytes: int = 512 * MIB
    """Of all its processes, their page cache and its memory file systems."""
    num_processes: int = 256
    """Processes and threads."""
    disk_bytes: int = 1024 * MIB
    """What it may write, all in all."""
    num_files: int = 100_000
    """Files and folders that it may make."""
    file_bytes: int = 512 * MIB
    """One file."""
    num_open_files: int = 1024
    """Descriptors of one process."""
    output_bytes: int = MIB
    """Kept of each of a command's two streams: the first and the last half."""
    upload_bytes: int = 100 * MIB
    """One transfer, in or out."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not isinstance(value, str) and not 0 < value <= MOST:
                raise ValueError(f"{limit.name} must be above 0 and at most {MOST:g}, and is {value}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One destination that a sandbox may reach."""

    host: str
    """A name, an address, or a network such as 10.0.0.0/8; a leading dot allows every name below."""
    port: int

    def __post_init__(self) -> None:
        if not self.host or not 0 < self.port < 1 << 16:
            raise ValueError(f"a destination must be host:port, such as pypi.org:443, and is {self.host!r}:{self.port}")


@dataclass(frozen=True, slots=True)
class Network:
    """What a sandbox may reach; nothing by default."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def none(cls) -> "Network":
        """No network but its own loopback."""
        return cls()

    @classmethod
    def allow(cls, *destinations: str) -> "Network":
        """Destinations as `host:port`; everything goes through the host's proxy, names are resolved there."""
        rules = []
        for destination in destinations:
            host, colon, port = destination.rpartition(":")
            if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
                raise ValueError(f"a destination must be host:port, such as pypi.org:443, and is {destination!r}")
            rules.append(Rule(host.strip("[]"), int(port)))
        return cls(tuple(rules))


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """Everything that a sandbox is made from. The same spec on another host makes the same sandbox."""

    kind: Kind = "function"
    image: str | None = None
    """A reference in the host's image store; None is the smallest image of the kind."""
    layers: tuple[str, ...] = ()
    """Digests or names of workspace and toolkit layers, stacked on the image in this order."""
    limits: Limits = field(default_factory=Limits)
    network: Network = field(default_factory=Network)
    env: tuple[tuple[str, str], ...] = ()
    """The whole environment of its commands beside PATH, HOME, USER and LANG; nothing is inherited."""
    cwd: str = "/work"
    driver: str | None = None
    """One driver of the kind by name, such as `crun`, `runc`, `gvisor`, `docker`; None takes the first that works."""
    ttl_s: float | None = 3600.0
    """Life in seconds of running time: time spent paused does not count. None: for ever."""
    idle_ttl_s: float | None = None
    """The same since the last call."""
    snapshot_every: int | None = None
    """A snapshot after this many mutating commands, which bounds what a rebuild must run again."""

    def __post_init__(self) -> None:
        if not self.cwd.startswith("/"):
            raise ValueError(f"cwd must be an absolute path, such as /work, and is {self.cwd!r}")
        for name, value in self.env:
            if not name or "=" in name or "\0" in name + value:
                raise ValueError(f"env must have names without = and no NUL characters, and has {name!r}={value!r}")
        _check_seconds(self, "ttl_s", "idle_ttl_s")
        if self.snapshot_every is not None and self.snapshot_every < 1:
            raise ValueError(f"snapshot_every must be 1 or more, or None for never, and is {self.snapshot_every}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What something has used so far."""

    cpu_s: float = 0.0
    peak_memory_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: `argv`, run without a shell, or `shell`, given to `/bin/sh -c`; never both, never guessed."""

    argv: tuple[str, ...] | None = None
    shell: str | None = None
    cwd: str | None = None
    env: tuple[tuple[str, str], ...] = ()
    """Added to the sandbox's own."""
    stdin: bytes = b""
    timeout_s: float | None = 60.0
    quiet_timeout_s: float | None = None
    """Ended when it prints nothing for so long."""
    max_output_bytes: int | None = None
    """Of each stream; None takes the sandbox's limit."""
    user: str | None = None
    """`root` is root inside and nobody outside; None is the sandbox's ordinary user."""
    is_idempotent: bool = False
    """It may be run again when a crash hides whether it ran."""

    def __post_init__(self) -> None:
        if (self.argv is None) == (self.shell is None):
            raise ValueError(f"a command needs either argv or shell, and has {self.argv!r} and {self.shell!r}")
        if self.argv is not None and not self.argv:
            raise ValueError("argv is empty; it must name a program")
        if self.user not in (None, "root"):
            raise ValueError(f"user must be 'root' or None, the sandbox's own user, and is {self.user!r}")
        _check_seconds(self, "timeout_s", "quiet_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a command ended."""

    returncode: int | None
    """None if it did not end by itself; -n for signal n."""
    stdout: bytes
    stderr: bytes
    reason: Reason = Reason.EXITED
    dropped_stdout_bytes: int = 0
    """Cut from the middle of stdout."""
    dropped_stderr_bytes: int = 0
    usage: Usage = field(default_factory=Usage)
    duration_s: float = 0.0
    seq: int | None = None
    """Its place in the trajectory."""
    is_replayed: bool = False
    """It was read from the log; nothing ran."""

    @property
    def is_truncated(self) -> bool:
        """Whether output was dropped."""
        return self.dropped_stdout_bytes + self.dropped_stderr_bytes > 0

    @property
    def text(self) -> str:
        """Stdout as text; what is not UTF-8 is replaced."""
        return self.stdout.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCall:
    """One call of a Python function in a sandbox. It starts from nothing and leaves nothing behind."""

    source: str
    """A module's text; it defines `name`."""
    name: str
    args: tuple[Any, ...] = ()
    """JSON values."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    timeout_s: float | None = 10.0

    def __post_init__(self) -> None:
        _check_seconds(self, "timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a function call came to."""

    value: Any = None
    """What the function returned: a JSON value."""
    error: str | None = None
    """The traceback, or why there is no value; None if it returned."""
    stdout: bytes = b""
    stderr: bytes = b""
    reason: Reason = Reason.EXITED
    """As of a command: EXITED also when the function raised."""
    usage: Usage = field(default_factory=Usage)
    duration_s: float = 0.0
    seq: int | None = None
    is_replayed: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a running command's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStat:
    """One entry of a folder."""

    path: str
    type: Literal["file", "folder", "link", "other"]
    size_bytes: int
    mode: int
    """Permission bits."""
    modified_s: float
    target: str | None = None
    """Where a link points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRef:
    """A sandbox's state at one point of its trajectory, kept in the host's store."""

    id: str
    kind: Kind
    seq: int
    """The last mutating command in it; -1 before the first."""
    layers: tuple[str, ...] = ()
    """Digests of layers to stack on the image; a virtual machine's disk or memory is one layer."""
    size_bytes: int = 0
    state: str = ""
    """Digest of all that was changed of its files, without times; empty of a virtual machine, whose host sees none."""


class Checkpoint(NamedTuple):
    """A place in a trajectory, for a rollout's own log: what has been seen, and the proof that it is still the same."""

    sandbox_id: str
    last_seq: int
    """The last call whose answer is part of the rollout; -1 before the first."""
    chain: str = ""
    """Digest, in hex, of the log up to that answer; empty when last_seq is -1, or where no proof is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Whether one driver works on this machine, found by starting something with it."""

    kind: Kind
    driver: str
    is_working: bool
    detail: str
    """Version and start time, or why not and what would mend it."""
    start_s: float | None = None


def _check_seconds(record: Any, *names: str) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and not 0 < value <= MOST_S:
            raise ValueError(f"{name} must be a number of seconds above 0, or None for no limit, and is {value}")
