"""The sandboxes of this machine, owned by this process: `Host` without a network between.

A host owns what it holds the log of. Another process that opens the same state root sees the others' sandboxes and
leaves them alone; when their owner is gone, killed with -9 too, whoever calls one next takes it over: finds its
machine, joins what runs in it, and goes on behind the last call of its log.
"""

import asyncio
import contextlib
import math
import secrets
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from benthic.errors import RequestError, SandboxError
from benthic.sandbox.driver import Driver
from benthic.sandbox.errors import GuestLost, SandboxDied, TrajectoryDiverged, TrajectoryHeld
from benthic.sandbox.folders import Folders, SandboxRecord
from benthic.sandbox.garbage import GRACE_S, Garbage, clear_garbage
from benthic.sandbox.guest import Terminal
from benthic.sandbox.host import Answer, Logged, Rebuilt, Request, SandboxInfo
from benthic.sandbox.images import Store
from benthic.sandbox.lifecycle import Lifecycle
from benthic.sandbox.live import LiveSandbox, checked_count, checked_name, info_of, kept_chunks
from benthic.sandbox.records import Checkpoint, Chunk, Reason, Result, SandboxSpec, SnapshotRef, State
from benthic.sandbox.starting import Starter
from benthic.sandbox.trajectory import Trajectory
from benthic.sandbox.trajectory.ledger import logged_answer
from benthic.sandbox.trajectory.replay import PASSING
from benthic.sandbox.wire import decode, unpack_error, unpack_result

STATE_ROOT = Path("~/.local/state/benthic/sandbox")


class LocalHost:
    """Implements `Host`; see there for what each call does.

        async with LocalHost(root, drivers) as host:
            info = await host.create(SandboxSpec(kind="container"))

    Leaving it leaves its sandboxes alive, for the next one to take over; `close` ends one.
    """

    def __init__(
        self,
        root: Path | None = None,
        drivers: Sequence[Driver] = (),
        *,
        trajectories: Path | None = None,
        max_starting: int = 8,
        start_budget_s: float = 120.0,
        max_paused_s: float = 24 * 3600.0,
    ) -> None:
        """
        Args:
            root: of all state; None takes `STATE_ROOT`.
            drivers: in the order in which a kind's are tried.
            trajectories: where logs lie if not below `root`: on a file system that several hosts share, say.
            max_starting: sandboxes between the driver's first act and init's greeting.
            start_budget_s: for one start, waiting and its second try included.
            max_paused_s: a sandbox that is paused for longer has expired.
        """
        folders = Folders((root or STATE_ROOT).expanduser(), trajectories)
        self.drivers = drivers
        self.folders = folders
        starter = Starter(drivers, max_starting=max_starting, budget_s=start_budget_s)
        self._cycle = Lifecycle(folders, starter, max_paused_s=max_paused_s)
        self._graves: dict[str, Trajectory] = {}

    async def open(self, *, adopts: bool = False) -> list[str]:
        """Begins to watch over sandboxes.

        Args:
            adopts: takes over at once whatever nobody owns, and sweeps away what belongs to nothing. Without, a
                sandbox is taken over when it is first called.

        Returns: ids of those that were taken over.
        """
        await self._cycle.open()
        if not adopts:
            return []
        alive = await self._cycle.adopt_all()
        await self._cycle.reconcile()
        return alive

    async def leave(self) -> None:
        """Lets go of all sandboxes without ending them."""
        await self._cycle.leave()

    async def __aenter__(self) -> "LocalHost":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def reconcile(self, *, adopts: bool = False) -> list[str]:
        """Removes every resource that belongs to no living sandbox; says what went.

        Args:
            adopts: takes over whatever nobody owns first, and so finds out what is dead of it.
        """
        if adopts:
            await self._cycle.adopt_all()
        return await self._cycle.reconcile()

    async def clear_garbage(
        self, *, grace_s: float = GRACE_S, keep_logs_s: float | None = None, is_dry: bool = False
    ) -> Garbage:
        """Removes snapshots, layers and values of logs that nothing needs; see `garbage.py`."""
        store = Store(self.folders.store)
        return await asyncio.to_thread(
            clear_garbage, self.folders, store, grace_s=grace_s, keep_logs_s=keep_logs_s, is_dry=is_dry
        )

    async def create(
        self, spec: SandboxSpec, *, key: str | None = None, snapshot: SnapshotRef | None = None
    ) -> SandboxInfo:
        return await self.info(await self._cycle.create(spec, key, snapshot))

    async def info(self, sandbox_id: str) -> SandboxInfo:
        with contextlib.suppress(TrajectoryHeld):
            sandbox = await self._cycle.find(sandbox_id)
            if sandbox is not None:
                return await sandbox.info()
        return info_of(self._cycle.record(sandbox_id), self._trajectory(sandbox_id).next_seq)

    async def sandboxes(self) -> list[SandboxInfo]:
        ids = await asyncio.to_thread(lambda: list(self.folders.ids()))
        records = [record for sandbox_id in ids if (record := self.folders.load(sandbox_id)) is not None]
        return [await self._listed(record) for record in records if record.state is not State.DEAD]

    async def call(self, sandbox_id: str, seq: int, request: Request) -> Answer:
        _check_seq(seq)
        sandbox = await self._cycle.find(sandbox_id)
        if sandbox is not None:
            return await sandbox.call(seq, request)
        answer = logged_answer(self._grave(sandbox_id), seq, request)
        if answer is None:
            raise self._death(sandbox_id)
        return answer

    async def answers(self, sandbox_id: str, first_seq: int) -> list[Logged]:
        _check_seq(first_seq)
        sandbox = await self._cycle.find(sandbox_id)
        if sandbox is None:
            return self._grave(sandbox_id).page(first_seq)
        page = sandbox.log.page(first_seq)
        await sandbox.log.sync()  # after the reading: what was read is then on disk, and will not be otherwise
        return page

    async def stream(self, sandbox_id: str, seq: int, request: Request) -> AsyncGenerator[Chunk | Answer, None]:
        if request.verb != "exec":
            raise RequestError(f"only exec has output to stream, and {request.verb} came", param="verb")
        _check_seq(seq)
        sandbox = await self._cycle.find(sandbox_id)
        if sandbox is None:
            answer = await self.call(sandbox_id, seq, request)
            for chunk in kept_chunks(answer):
                yield chunk
            yield answer
            return
        async with contextlib.aclosing(sandbox.stream(seq, request)) as items:
            async for item in items:
                yield item

    async def signal(self, sandbox_id: str, seq: int, signal: int) -> None:
        sandbox = await self._alive(sandbox_id)
        async with _dies_with(sandbox):
            await sandbox.guest.signal(sandbox.execution.job(seq), signal)

    async def feed(self, sandbox_id: str, seq: int, data: bytes | None) -> None:
        sandbox = await self._alive(sandbox_id)
        _require_spawned(sandbox.log, seq)
        async with _dies_with(sandbox):
            await sandbox.guest.feed(sandbox.execution.job(seq), data)

    async def output(self, sandbox_id: str, seq: int) -> AsyncGenerator[Chunk, None]:
        sandbox = await self._cycle.find(sandbox_id)
        log = sandbox.log if sandbox else self._grave(sandbox_id)
        _require_spawned(log, seq)
        ended = log.entry(seq).exit
        if ended is not None:
            for chunk in kept_chunks(ended):
                yield chunk
        elif sandbox is None:
            raise self._death(sandbox_id)
        else:
            async with _dies_with(sandbox), contextlib.aclosing(sandbox.read_output(seq)) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def wait(self, sandbox_id: str, seq: int) -> Result:
        sandbox = await self._cycle.find(sandbox_id)
        log = sandbox.log if sandbox else self._grave(sandbox_id)
        _require_spawned(log, seq)
        answer = await sandbox.wait(seq) if sandbox else log.entry(seq).exit
        if answer is None:
            raise self._death(sandbox_id)
        return _result(answer, seq)

    async def resize(self, sandbox_id: str, seq: int, rows: int, columns: int) -> None:
        sandbox = await self._alive(sandbox_id)
        async with _dies_with(sandbox):
            await sandbox.guest.resize(sandbox.execution.job(seq), Terminal(rows, columns))

    async def expose(self, sandbox_id: str, port: int) -> str:
        sandbox = await self._alive(sandbox_id)
        async with _dies_with(sandbox):
            return str(await sandbox.expose(port, self.folders.home(sandbox_id) / f"port-{port}.sock"))

    async def pause(self, sandbox_id: str) -> None:
        await (await self._alive(sandbox_id)).pause()

    async def resume(self, sandbox_id: str) -> None:
        await (await self._alive(sandbox_id)).resume()

    async def snapshot(self, sandbox_id: str, name: str | None = None, *, seq: int | None = None) -> SnapshotRef:
        checked_name(name)
        if seq is None:
            is_asked = name is None or not name.startswith(PASSING)
            sandbox = await self._alive(sandbox_id)
            return await sandbox.snapshot(f"{sandbox_id}-{name or secrets.token_hex(4)}", is_asked=is_asked)
        answer = await self.call(sandbox_id, seq, Request(verb="snapshot", arguments={"name": name}))
        return decode(SnapshotRef, _value(answer))

    async def fork(self, sandbox_id: str, count: int, *, seq: int | None = None) -> list[SandboxInfo]:
        checked_count(count)
        if seq is None:
            ids = await self._cycle.make_forks(await self._alive(sandbox_id), -1, count)
        else:
            answer = await self.call(sandbox_id, seq, Request(verb="fork", arguments={"count": count}))
            ids = _value(answer)["ids"]
        return [await self.info(fork_id) for fork_id in ids]

    async def branch(self, sandbox_id: str, seq: int, *, key: str | None = None) -> SandboxInfo:
        sandbox = await self._cycle.find(sandbox_id)
        log: Trajectory = sandbox.log if sandbox else self._grave(sandbox_id)
        if not 0 <= seq <= log.next_seq:
            raise RequestError(f"seq ({seq}) must be in 0..{log.next_seq}, the calls of {sandbox_id}", param="seq")
        return await self.info(await self._cycle.branch(log, self._cycle.record(sandbox_id).spec, seq, key))

    async def rebuild(self, sandbox_id: str, *, may_rerun: bool = False) -> Rebuilt:
        sandbox = await self._cycle.find(sandbox_id)
        if sandbox is not None:
            return Rebuilt(snapshot_seq=sandbox.log.next_seq - 1, num_run=0)
        self._graves.pop(sandbox_id, None)
        return await self._cycle.rebuild(sandbox_id, may_rerun=may_rerun)

    async def checkpoint(self, sandbox_id: str, last_seq: int | None = None) -> Checkpoint:
        sandbox = await self._cycle.find(sandbox_id)
        log: Trajectory = sandbox.log if sandbox else self._grave(sandbox_id)
        if last_seq is not None and not (-1 <= last_seq <= log.checkpoint().last_seq):
            raise TrajectoryDiverged(
                f"the log of {sandbox_id} ends with call {log.checkpoint().last_seq}, before {last_seq}: "
                "it is not the log that was seen"
            )
        return log.checkpoint(last_seq)

    async def renew(self, sandbox_id: str, lease_s: float) -> None:
        if not 0 < lease_s < math.inf:
            raise RequestError(f"lease_s ({lease_s}) must be a number of seconds above 0", param="lease_s")
        await (await self._alive(sandbox_id)).renew(lease_s)

    async def log(self, sandbox_id: str) -> list[dict[str, Any]]:
        return await asyncio.to_thread(lambda: self._trajectory(sandbox_id).records())

    async def close(self, sandbox_id: str) -> None:
        sandbox = await self._cycle.find(sandbox_id)
        if sandbox is not None:
            await self._cycle.bury(sandbox, Reason.CLOSED)

    def trajectory(self, sandbox_id: str) -> Trajectory:
        """Its log as it is now, for those who verify and blame."""
        return self._trajectory(sandbox_id)

    async def _alive(self, sandbox_id: str) -> LiveSandbox:
        sandbox = await self._cycle.find(sandbox_id)
        if sandbox is None:
            raise self._death(sandbox_id)
        return sandbox

    def _death(self, sandbox_id: str) -> SandboxDied:
        record = self._cycle.record(sandbox_id)
        return SandboxDied(sandbox_id, record.reason or Reason.CRASHED, record.detail)

    def _grave(self, sandbox_id: str) -> Trajectory:
        """The log of a dead sandbox, which changes no more."""
        found = self._graves.get(sandbox_id)
        if found is None:
            found = self._graves[sandbox_id] = self._trajectory(sandbox_id)
        return found

    def _trajectory(self, sandbox_id: str) -> Trajectory:
        self._cycle.record(sandbox_id)
        return Trajectory.read(self.folders.log(sandbox_id), self._cycle.blobs)

    async def _listed(self, record: SandboxRecord) -> SandboxInfo:
        sandbox = self._cycle.live.get(record.id)
        return await sandbox.info() if sandbox else info_of(record, self._trajectory(record.id).next_seq)


@contextlib.asynccontextmanager
async def _dies_with(sandbox: LiveSandbox) -> AsyncGenerator[None, None]:
    try:
        yield
    except GuestLost as error:
        raise await sandbox.dead_by(error) from error


def _check_seq(seq: int) -> None:
    if seq < 0:
        raise RequestError(f"seq ({seq}) must be 0 or more", param="seq")


def _require_spawned(log: Trajectory, seq: int) -> None:
    place = log.place(seq) if seq >= 0 else None
    if place is None or place.verb != "spawn":
        raise SandboxError(f"call {seq} of {log.head.sandbox_id} is no spawned command")


def _value(answer: Answer) -> dict[str, Any]:
    if answer.error is not None:
        raise unpack_error(answer)
    return answer.value


def _result(answer: Answer, seq: int) -> Result:
    if answer.error is not None:
        raise unpack_error(answer)
    result = unpack_result(answer.value, answer.data)
    return replace(result, seq=seq, is_replayed=answer.is_replayed)
