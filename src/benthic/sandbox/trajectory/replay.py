"""Runs a log again in a fresh sandbox, on any host, and says call by call whether it came to the same.

    report = await verify(host, Trajectory.read(path, blobs))
    report.first_difference   # None: everything that was logged can be had again

Every logged call that has an answer is sent again, reads too: they are what the agent saw. Snapshots and forks are
passed over, since they change nothing in the sandbox itself; but where the log has one with a digest of the files, the
files are compared too. So with `snapshot_every=1` the first difference is the very call after which a file differed.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace

from benthic.errors import SandboxError
from benthic.sandbox.host import Answer, Host, Request
from benthic.sandbox.records import SandboxSpec, SnapshotRef
from benthic.sandbox.trajectory.compare import NORMALISERS, Normaliser, Sameness, compare
from benthic.sandbox.trajectory.entries import Entry
from benthic.sandbox.trajectory.reader import Trajectory
from benthic.sandbox.wire import decode, pack_result

_PASSED_OVER = ("snapshot", "fork")
PASSING = "passing-"
"""Begins the names of snapshots that nobody will come back to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a log, run again."""

    seq: int
    verb: str
    sameness: Sameness
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a second run of a log came to."""

    steps: tuple[Step, ...]
    num_open: int
    """Calls without an answer in the log: they cannot be compared."""

    @property
    def first_difference(self) -> Step | None:
        """The first call that came to something else."""
        return next((step for step in self.steps if step.sameness == "different"), None)

    @property
    def is_exact(self) -> bool:
        """Whether every call came to the same, byte for byte."""
        return all(step.sameness == "exact" for step in self.steps)


async def verify(
    host: Host,
    log: Trajectory,
    *,
    normalisers: Sequence[Normaliser] = NORMALISERS,
    observe: Callable[[Step], None] | None = None,
    stops: bool = False,
) -> Report:
    """See the module's docstring.

    Args:
        normalisers: what two good runs may differ in; empty asks for the same bytes.
        observe: is told of each call as it ends.
        stops: ends with the first difference; later ones mostly follow from it.

    Raises:
        StartFailed, NotSupported: the fresh sandbox did not come up.
        SandboxDied: it died on the way.
    """
    steps: list[Step] = []
    async with fresh(host, log) as player:
        for entry in log.entries():
            for step in [*await player.compared(entry, normalisers), *await player.state_compared(entry.seq)]:
                steps.append(step)
                if observe is not None:
                    observe(step)
            if stops and steps and steps[-1].sameness == "different":
                break
    num_open = sum(place.end is None for place in log.places())
    return Report(steps=tuple(steps), num_open=num_open)


@contextlib.asynccontextmanager
async def fresh(host: Host, log: Trajectory) -> AsyncIterator["Player"]:
    """A sandbox like the log's at its beginning, which is closed at the end."""
    spec = decode(SandboxSpec, log.head.spec)
    snapshot = decode(SnapshotRef, log.head.snapshot) if log.head.snapshot else None
    # Its life is this run's; snapshots on the way would be of no use.
    info = await host.create(replace(spec, snapshot_every=None, ttl_s=None, idle_ttl_s=None), snapshot=snapshot)
    try:
        yield Player(host, info.id, log)
    finally:
        await host.close(info.id)


class Player:
    """Sends logged calls to another sandbox, where they have other places."""

    def __init__(self, host: Host, sandbox_id: str, log: Trajectory) -> None:
        self.host = host
        self.sandbox_id = sandbox_id
        self.log = log
        self._next_seq = 0
        self._places: dict[int, int] = {}
        """Of the log's calls, there."""
        self._waiting: list[Entry] = []
        """Spawned commands whose logged ends are still to come."""
        refs = [decode(SnapshotRef, note["ref"]) for note in log.notes("snapshot")]
        self._states = {ref.seq: ref.state for ref in refs}

    async def send(self, request: Request) -> Answer:
        """A call of our own, or one of the log."""
        answer = await self.host.call(self.sandbox_id, self._next_seq, request)
        self._next_seq += 1
        return answer

    async def play(self, entry: Entry) -> Answer | None:
        """Sends a logged call; None if it is passed over."""
        if entry.answer is None or entry.request.verb in _PASSED_OVER:
            return None
        request = entry.request
        process = request.arguments.get("process")
        if process is not None:
            if process not in self._places:
                raise SandboxError(f"call {entry.seq} is about process {process}, which was never spawned")
            request = replace(request, arguments={**request.arguments, "process": self._places[process]})
        self._places[entry.seq] = self._next_seq
        answer = await self.send(request)
        if entry.request.verb == "spawn" and entry.exit is not None:
            self._waiting.append(entry)
        return answer

    async def compared(self, entry: Entry, normalisers: Sequence[Normaliser] = NORMALISERS) -> list[Step]:
        """Sends a logged call, after the ends of spawned commands that the log has before it."""
        steps = await self.ends_before(entry.seq, normalisers)
        again = await self.play(entry)
        if again is not None:
            assert entry.answer is not None
            found = compare(entry.request, entry.answer, again, normalisers)
            verb = entry.request.verb
            steps.append(Step(seq=entry.seq, verb=verb, sameness=found.sameness, detail=found.detail))
        if entry.seq == self.log.next_seq - 1:
            steps += await self.ends_before(None, normalisers)
        return steps

    async def state_compared(self, seq: int) -> list[Step]:
        """Of all files, if the log has a digest of them from right behind a call."""
        logged = self._states.get(seq, "")
        if not logged:
            return []
        again = await self.host.snapshot(self.sandbox_id, f"{PASSING}{seq}")
        if again.state == logged:
            return [Step(seq=seq, verb="state", sameness="exact")]
        detail = f"the digest of the changed files was {logged[:12]}, and is {again.state[:12] or 'not known'}"
        return [Step(seq=seq, verb="state", sameness="different", detail=detail)]

    async def ends_before(self, seq: int | None, normalisers: Sequence[Normaliser] = NORMALISERS) -> list[Step]:
        """Waits for the spawned commands that the log saw end before a call; None means all."""
        steps = []
        limit = None if seq is None else self.log.places()[seq].begin.start
        for entry in list(self._waiting):
            exited = self.log.places()[entry.seq].exit
            assert exited is not None and entry.exit is not None
            if limit is not None and exited.start > limit:
                continue
            self._waiting.remove(entry)
            value, data = pack_result(await self.host.wait(self.sandbox_id, self._places[entry.seq]))
            again = Answer(value={name: item for name, item in value.items() if name != "seq"}, data=data)
            found = compare(Request(verb="exec"), entry.exit, again, normalisers)
            steps.append(Step(seq=entry.seq, verb="exit", sameness=found.sameness, detail=found.detail))
        return steps
