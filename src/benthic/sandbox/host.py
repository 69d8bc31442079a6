"""What a handle on a sandbox asks of whoever owns it: this process (`local.py`) or a fleet (`fleet/client.py`).

Every call that an agent's program makes carries its place in the trajectory, `seq`. The owner answers from the log
what has ended before, joins what is running, and runs the rest: sending the same call twice is always safe.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from benthic.sandbox.records import Checkpoint, Chunk, Reason, Result, SandboxSpec, SnapshotRef, State, Usage

Verb = Literal[
    "exec",
    "spawn",
    "feed",
    "signal",
    "call",
    "read",
    "write",
    "list",
    "stat",
    "remove",
    "upload",
    "download",
    "snapshot",
    "fork",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One logged call. `arguments` is JSON; bytes travel beside it, never inside."""

    verb: Verb
    arguments: dict[str, Any] = field(default_factory=dict)
    data: bytes = b""
    """What is written: a file's new content, a tar archive, a command's input."""

    @property
    def is_mutating(self) -> bool:
        """Whether the call can change the sandbox; the others are logged so that a replay observes the same.

        A function call changes nothing: it runs in a process and namespaces of its own, which end with it.
        """
        return self.verb not in ("call", "read", "list", "stat", "download")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a logged call came to: exactly one of `value` and `error` matters."""

    value: dict[str, Any] = field(default_factory=dict)
    data: bytes = b""
    error: str | None = None
    """Name of the class in `errors.py`; `value` then has what its constructor needs."""
    seq: int = 0
    is_replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A call that has ended, as its log has it for ever: the same request in its place comes to this answer."""

    request_hash: str
    answer: Answer
    exit: Answer | None = None
    """Of a spawned command whose end was asked for: its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """What is known of a sandbox without asking it."""

    id: str
    spec: SandboxSpec
    state: State
    reason: Reason | None = None
    detail: str = ""
    next_seq: int = 0
    """One past the last logged call."""
    created_s: float = 0.0
    """Unix time."""
    start_s: dict[str, float] = field(default_factory=dict)
    """Seconds that each stage of its start took."""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """How well a sandbox was made again from its log."""

    snapshot_seq: int
    """The last call that the snapshot holds; -1 from the image alone."""
    num_run: int
    """Calls that were run again."""
    diverged_at: int | None = None
    """The first call that came to something else than the log says; None: exact."""
    detail: str = ""


class Host(Protocol):
    """The owner of sandboxes. Methods raise the errors of `errors.py`."""

    async def create(
        self, spec: SandboxSpec, *, key: str | None = None, snapshot: SnapshotRef | None = None
    ) -> SandboxInfo:
        """Makes a sandbox; a key that was used before gives the sandbox that was made for it."""

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """What is known of one, also after its death."""

    async def sandboxes(self) -> list[SandboxInfo]:
        """All that are not closed."""

    async def call(self, sandbox_id: str, seq: int, request: Request) -> Answer:
        """Answers from the log, joins, or runs. See the module's docstring."""

    async def answers(self, sandbox_id: str, first_seq: int) -> list[Logged]:
        """Calls from a place on that have ended: one page of what `call` would answer from the log.

        Calls that run, and those with large values, are left out; `call` answers them.
        """

    def stream(self, sandbox_id: str, seq: int, request: Request) -> AsyncIterator[Chunk | Answer]:
        """The same for `exec`, with output as it comes; the last item is the answer. Slow readers slow the command."""

    async def signal(self, sandbox_id: str, seq: int, signal: int) -> None:
        """To everything that the command of that place has started; not logged, the command's own end will tell."""

    async def feed(self, sandbox_id: str, seq: int, data: bytes | None) -> None:
        """More input for a spawned command, not logged, as from a person at a terminal; None ends it."""

    def output(self, sandbox_id: str, seq: int) -> AsyncIterator[Chunk]:
        """A spawned command's output from where it is kept, then as it comes, until it ends."""

    async def wait(self, sandbox_id: str, seq: int) -> Result:
        """Until a spawned command has ended."""

    async def resize(self, sandbox_id: str, seq: int, rows: int, columns: int) -> None:
        """The terminal of a command that was spawned with one."""

    async def expose(self, sandbox_id: str, port: int) -> str:
        """The path of a unix socket on the sandbox's host that leads to a TCP port inside."""

    async def pause(self, sandbox_id: str) -> None:
        """Freezes it; its clocks of life stop."""

    async def resume(self, sandbox_id: str) -> None:
        """Lets it go on."""

    async def snapshot(self, sandbox_id: str, name: str | None = None, *, seq: int | None = None) -> SnapshotRef:
        """Keeps its state in the store. With a place it is a logged call: sent again, it gives the same snapshot."""

    async def fork(self, sandbox_id: str, count: int, *, seq: int | None = None) -> list[SandboxInfo]:
        """That many new sandboxes which start from its present state, each with a trajectory of its own.

        With a place it is a logged call: sent again, it gives the same sandboxes.
        """

    async def branch(self, sandbox_id: str, seq: int, *, key: str | None = None) -> SandboxInfo:
        """A new sandbox in the state, and with the trajectory, that this one had before the call of that place.

        It starts from the nearest snapshot and runs again what was logged behind it.

        Raises:
            TrajectoryDiverged: that came to something else than the log says.
        """

    async def rebuild(self, sandbox_id: str, *, may_rerun: bool = False) -> Rebuilt:
        """Makes a dead sandbox again, here, under its own id, from its log; a living one is left alone.

        A call that was running when the old one died runs again when it is sent again, unless it may have been heard
        outside (the sandbox has a network) and is not `is_idempotent`: then it raises OutcomeUnknown.

        Args:
            may_rerun: such calls, too, may run again.

        Raises:
            SandboxDied: it was closed, or died by its own doing.
        """

    async def checkpoint(self, sandbox_id: str, last_seq: int | None = None) -> Checkpoint:
        """The place behind an answered call, with its proof; None means behind the last one that has been answered.

        Raises:
            TrajectoryDiverged: the log does not reach so far.
        """

    async def renew(self, sandbox_id: str, lease_s: float) -> None:
        """Its holder lives: keep it for so long from now."""

    async def log(self, sandbox_id: str) -> list[dict[str, Any]]:
        """The trajectory's records, oldest first."""

    async def close(self, sandbox_id: str) -> None:
        """Ends it and removes everything but its log."""
