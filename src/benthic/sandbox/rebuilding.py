"""Makes a sandbox again from what its log says: the nearest snapshot, then the logged calls behind it.

Only calls that can change the sandbox are run, in the order in which they began, under the same job ids; a spawned
command's end is waited for where the log has it. What each comes to is compared with the log.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from benthic.errors import SandboxError
from benthic.sandbox.errors import GuestLost, OutcomeUnknown
from benthic.sandbox.execution import Execution
from benthic.sandbox.host import Answer, Rebuilt, Request
from benthic.sandbox.records import SandboxSpec, SnapshotRef
from benthic.sandbox.trajectory import Trajectory, TrajectoryLog
from benthic.sandbox.trajectory.compare import compare
from benthic.sandbox.trajectory.entries import Entry
from benthic.sandbox.trajectory.ledger import outcome_of
from benthic.sandbox.wire import decode, pack_result

# Kinds whose snapshots hold memory too: what was spawned before lives on in them.
WITH_MEMORY = ("microvm", "vm")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a sandbox that is made again starts from."""

    snapshot: SnapshotRef | None
    seq: int
    """The last call that is already in it; -1 for none."""


def origin(log: Trajectory, before: int, is_here: Callable[[SnapshotRef], bool]) -> Origin:
    """The latest snapshot of those that are here which holds no call from a place on."""
    refs = [decode(SnapshotRef, note["ref"]) for note in log.notes("snapshot")]
    fitting = [ref for ref in refs if ref.seq < before and is_here(ref)]
    if fitting:
        latest = max(fitting, key=lambda ref: ref.seq)
        return Origin(latest, latest.seq)
    first = log.head.snapshot
    return Origin(decode(SnapshotRef, first) if first else None, -1)


async def copy_calls(parent: Trajectory, child: TrajectoryLog, before: int) -> None:
    """Gives a branch the calls that it shares with its parent, so that a program which is run again meets them."""
    for entry in (parent.entry(seq) for seq in range(before)):
        if entry.answer is None:
            raise SandboxError(f"call {entry.seq} has no end in the log yet; branch at or before it")
        if entry.request.is_mutating:
            await child.begin(entry.seq, entry.request, entry.request_hash, is_synced=False)
            await child.end(entry.seq, entry.answer, is_synced=False)
        else:
            await child.done(entry.seq, entry.request, entry.answer, entry.request_hash, is_synced=False)
        if entry.exit is not None:
            await child.exited(entry.seq, entry.exit, is_synced=False)
    for note in parent.notes("snapshot"):
        if note["ref"]["seq"] < before:
            await child.note("snapshot", ref=note["ref"])
    await child.sync()


@dataclass(slots=True)
class Rerun:
    """A second run of logged calls on a fresh machine."""

    execution: Execution
    log: Trajectory
    start: Origin
    num_run: int = 0
    diverged_at: int | None = None
    detail: str = ""
    _spawned: list[int] = field(default_factory=list)
    """Commands whose logged ends have not been waited for yet."""

    async def run(self, before: int) -> Rebuilt:
        """All logged calls behind the start and before a place.

        Raises:
            GuestLost: the machine died of it.
        """
        for seq in range(self.start.seq + 1):
            await self._respawn(self.log.entry(seq))
        for seq in range(self.start.seq + 1, before):
            await self._await_ends(self.log.places()[seq].begin.start)
            entry = self.log.entry(seq)
            if (
                entry.answer is not None
                and entry.request.is_mutating
                and entry.request.verb not in ("snapshot", "fork")
            ):
                await self._run_one(entry, entry.answer)
        await self._await_ends(None)
        return Rebuilt(
            snapshot_seq=self.start.seq, num_run=self.num_run, diverged_at=self.diverged_at, detail=self.detail
        )

    async def _respawn(self, entry: Entry) -> None:
        """What ran in the background when the snapshot was taken is not in it, unless it holds memory."""
        snapshot = self.start.snapshot
        assert snapshot is not None
        if entry.request.verb == "spawn" and entry.exit is None and snapshot.kind not in WITH_MEMORY:
            await self.outcome(entry)

    async def _run_one(self, entry: Entry, logged: Answer) -> None:
        again = await self.outcome(entry)
        self._judge(entry.seq, entry.request, logged, again)
        if entry.request.verb == "spawn":
            if entry.exit is not None:
                self._spawned.append(entry.seq)
        else:
            await self.execution.guest.forget(self.execution.job(entry.seq))

    async def outcome(self, entry: Entry) -> Answer:
        """What a call comes to, run without a log."""
        self.num_run += 1
        return await outcome_of(self.execution.run(entry.seq, entry.request))

    async def _await_ends(self, offset: int | None) -> None:
        """Of spawned commands that the log saw end before an offset of the file."""
        for seq in list(self._spawned):
            exited = self.log.places()[seq].exit
            if exited is None or (offset is not None and exited.start > offset):
                continue
            self._spawned.remove(seq)
            logged = self.log.entry(seq).exit
            value, data = pack_result(await self.execution.exit(seq))
            assert logged is not None
            self._judge(seq, Request(verb="exec"), logged, Answer(value=value, data=data))
            with contextlib.suppress(GuestLost):
                await self.execution.guest.forget(self.execution.job(seq))

    def _judge(self, seq: int, request: Request, logged: Answer, again: Answer) -> None:
        found = compare(request, logged, again)
        if found.sameness == "different" and self.diverged_at is None:
            self.diverged_at, self.detail = seq, f"call {seq}: {found.detail}"


def doubtful(log: Trajectory, spec: SandboxSpec) -> list[int]:
    """Open calls that may have been heard outside before the old sandbox died: those must not just run again."""
    if not spec.network.rules:
        return []
    still_open = [entry for entry in log.entries() if entry.answer is None]
    return [entry.seq for entry in still_open if not entry.request.arguments.get("is_idempotent")]


def refuse_if_doubtful(log: Trajectory, seq: int) -> None:
    """Raises OutcomeUnknown for an open call that the last rebuild left in doubt."""
    notes = log.notes("rebuilt")
    place = log.place(seq)
    if notes and place is not None and place.end is None and seq in notes[-1]["doubtful"]:
        raise OutcomeUnknown(
            f"call {seq} ran when its sandbox died, may have been heard outside, and is not marked is_idempotent; "
            "rebuild with may_rerun, or branch before it"
        )
