"""One living sandbox of a host: its machine, its init, its log, and the gate that all calls pass.

    call -> ledger (log) -> gate -> execution -> init
                             |
             shut while a snapshot is taken, a pause begins, or nobody may call any more

Laws: `state` is RUNNING or PAUSED until `bury`, and DEAD afterwards, with a reason that never changes; the gate is shut
while it is paused; while `held_still` no call runs.
"""

import asyncio
import contextlib
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from benthic.errors import RequestError, SandboxError, shown
from benthic.sandbox.driver import Machine
from benthic.sandbox.errors import GuestLost, NotSupported, SandboxDied, TrajectoryHeld, TrajectoryUnwritable
from benthic.sandbox.execution import Execution
from benthic.sandbox.folders import SandboxRecord
from benthic.sandbox.guest import Guest
from benthic.sandbox.host import Answer, Request, SandboxInfo
from benthic.sandbox.lifetime import Lifetime
from benthic.sandbox.rebuilding import refuse_if_doubtful
from benthic.sandbox.records import Chunk, Reason, SnapshotRef, State, Usage
from benthic.sandbox.trajectory import TrajectoryLog
from benthic.sandbox.trajectory.ledger import Ledger
from benthic.sandbox.wire import encode, pack_result, unpack_result

LAST_CALLS_S = 1.0
MAX_FORKS = 1000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
DEATH_WAIT_S = 2.0
"""A driver may learn a little later than init's client that a sandbox is gone."""


class Owner(Protocol):
    """What a living sandbox needs of its host."""

    def changed(self, record: SandboxRecord) -> None:
        """Its state is another one; keep it."""

    def found_dead(self, sandbox: "LiveSandbox", death: SandboxDied) -> None:
        """A call found it so; bury it soon."""

    async def make_forks(self, sandbox: "LiveSandbox", seq: int, count: int) -> list[str]:
        """Ids of sandboxes that start from its present state; the same ones for the same place."""


class LiveSandbox:
    """See the module's docstring."""

    def __init__(self, owner: Owner, record: SandboxRecord, machine: Machine, guest: Guest, log: TrajectoryLog) -> None:
        self._owner = owner
        self.record = record
        self.machine = machine
        self.guest = guest
        self.log = log
        self.execution = Execution(record.id, record.spec, machine, guest, log)
        self.ledger = Ledger(log, self._run, self._ended)
        self.lifetime = Lifetime(
            ttl_s=record.spec.ttl_s,
            idle_ttl_s=record.spec.idle_ttl_s,
            lived_s=record.lived_s,
            last_call_lived_s=record.lived_s,
        )
        self._since_snapshot = 0
        self._gate = asyncio.Event()
        if record.state is State.PAUSED:
            guest.is_paused = True
        else:
            self.lifetime.started(time.time())
            self._gate.set()
        self._busy = 0
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._still = asyncio.Lock()
        self._readers: Counter[str] = Counter()
        self._waits: dict[int, asyncio.Task[Answer]] = {}
        self._ports: dict[int, asyncio.Server] = {}
        self._chores: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """Whether a call runs."""
        return self._busy > 0

    async def info(self) -> SandboxInfo:
        """What is known of it."""
        usage = Usage()
        if self.record.state is not State.DEAD:
            with contextlib.suppress(SandboxError, OSError):
                usage = await self.machine.usage()
        return info_of(self.record, self.log.next_seq, usage)

    async def call(self, seq: int, request: Request) -> Answer:
        """Answers from the log, joins, or runs.

        Raises:
            SandboxError: it is paused, and its log has no answer.
        """
        place = self.log.place(seq)
        if self.record.state is State.PAUSED and (place is None or place.end is None):
            if not self.record.is_lapsed:
                raise SandboxError(f"sandbox {self.record.id} is paused; resume it before calling it")
            await self.resume()
        try:
            return await self.ledger.call(seq, request)
        except TrajectoryHeld:
            self._require_alive()
            raise

    async def stream(self, seq: int, request: Request) -> AsyncGenerator[Chunk | Answer, None]:
        """A command's output as it comes, then its answer. A reader that leaves early leaves it running."""
        started = self.execution.streamed.setdefault(seq, asyncio.get_running_loop().create_future())
        call = asyncio.create_task(self.call(seq, request))
        try:
            first: list[asyncio.Future[Any]] = [call, started]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                async with contextlib.aclosing(self.read_output(seq)) as chunks:
                    async for chunk in chunks:
                        yield chunk
                yield await call
            else:
                answer = call.result()
                for chunk in kept_chunks(answer):
                    yield chunk
                yield answer
        finally:
            self.execution.streamed.pop(seq, None)
            if not call.done():
                self._do(self._drain(seq))  # nobody reads any more: the command must not wait for it

    async def read_output(self, seq: int) -> AsyncGenerator[Chunk, None]:
        """A running job's output; what init keeps of it is not forgotten while it is read."""
        job = self.execution.job(seq)
        self._readers[job] += 1
        chunks = self.guest.output(job)
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            self._readers[job] -= 1
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def wait(self, seq: int) -> Answer:
        """How a spawned command ended: from the log, or once it has."""
        known = self.log.entry(seq).exit
        if known is not None:
            return known
        task = self._waits.get(seq)
        if task is None:
            task = self._waits[seq] = asyncio.create_task(self._exit(seq))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(task)

    async def pause(self, *, is_lapsed: bool = False) -> None:
        """Freezes it once the running calls have ended; later ones wait until it goes on, or are refused."""
        async with self.held_still():
            if self.record.state is not State.RUNNING:
                return
            self.guest.is_paused = True
            await self.machine.freeze()
            now_s = time.time()
            self.lifetime.paused(now_s)
            self._become(State.PAUSED, paused_s=now_s, lived_s=self.lifetime.lived_s, is_lapsed=is_lapsed)
            await self.log.note("paused", is_lapsed=is_lapsed)

    def lapse(self) -> None:
        """Its holder is away: pauses it in the background."""
        if not self._still.locked():
            self._do(self.pause(is_lapsed=True))

    async def resume(self) -> None:
        """Lets it go on."""
        async with self._still:
            self._require_alive()
            if self.record.state is not State.PAUSED:
                return
            await self.machine.thaw()
            self.guest.is_paused = False
            self.lifetime.started(time.time())
            self._become(State.RUNNING, paused_s=None, is_lapsed=False)
            self._gate.set()
            await self.log.note("resumed")

    async def snapshot(self, name: str, *, is_asked: bool = True) -> SnapshotRef:
        """Keeps its state between two calls.

        Args:
            is_asked: somebody may keep the reference; others go once nothing of ours needs them (`garbage.py`).
        """
        async with self.held_still():
            seq = self.log.checkpoint().last_seq
            ref = replace(await self.machine.snapshot(name), seq=seq)
            if self.record.state is State.PAUSED:
                await self.machine.freeze()
            await self.log.note("snapshot", ref=encode(ref), is_asked=is_asked)
            self._since_snapshot = 0
        return ref

    @contextlib.asynccontextmanager
    async def held_still(self) -> AsyncIterator[None]:
        """No call runs inside; those that come wait at the gate."""
        async with self._still:
            self._gate.clear()
            try:
                while self._busy:
                    self._quiet.clear()
                    await self._quiet.wait()
                self._require_alive()
                yield
            finally:
                if self.record.state is not State.PAUSED:
                    self._gate.set()

    def settle(self) -> None:
        """Takes up what a crash of the host left open."""
        self.ledger.settle()

    async def bury(self, reason: Reason, detail: str = "") -> None:
        """Ends it for good. The first reason counts; the log is closed and stays."""
        if self.record.state is State.DEAD:
            return
        self._become(State.DEAD, reason=reason, detail=detail, lived_s=self.lifetime.lived(time.time()))
        self._gate.set()
        await self.machine.destroy()
        await self.guest.close()
        await self.ledger.close(wait_s=LAST_CALLS_S)  # what an agent has brought upon itself is an answer
        self._stop_chores()
        with contextlib.suppress(TrajectoryUnwritable):
            await self.log.note("died", reason=reason.value, detail=detail)
            await self.log.close()

    async def leave(self) -> None:
        """Lets go of it without ending it: another host may adopt it."""
        await self.ledger.close()
        self._stop_chores()
        await self.guest.close()
        await self.log.close()

    async def died(self, error: GuestLost) -> SandboxDied:
        """Init is lost: why, as the driver knows it. A machine without init is ended."""
        deadline = time.monotonic() + DEATH_WAIT_S
        while self.record.state is not State.DEAD:
            known = await self.machine.death()
            if known is not None:
                return SandboxDied(self.record.id, *known)
            if time.monotonic() > deadline:
                return SandboxDied(self.record.id, Reason.CRASHED, str(error))
            await asyncio.sleep(0.02)
        return self._grave()

    async def dead_by(self, error: GuestLost) -> SandboxDied:
        """What a caller is told when init is lost; the host buries the sandbox."""
        death = await self.died(error)
        self._owner.found_dead(self, death)
        return death

    async def renew(self, lease_s: float) -> None:
        """Its holder lives, and will be back within so many seconds."""
        self.lifetime.renewed(time.time(), lease_s)
        if self.record.is_lapsed:
            await self.resume()

    async def expose(self, port: int, path: Path) -> Path:
        """A unix socket on the host that leads to a TCP port inside, as long as the sandbox lives here."""
        if port not in self._ports:
            path.unlink(missing_ok=True)  # of an owner before this one
            self._ports[port] = await self.guest.serve_port(port, path)
        return path

    async def _run(self, seq: int, request: Request) -> Answer:
        """The ledger's way to the machine."""
        refuse_if_doubtful(self.log, seq)
        if request.verb == "snapshot":
            name = checked_name(request.arguments.get("name")) or seq
            return Answer(value=encode(await self.snapshot(f"{self.record.id}-{name}")))
        if request.verb == "fork":
            return Answer(
                value={"ids": await self._owner.make_forks(self, seq, checked_count(request.arguments.get("count")))}
            )
        while not self._gate.is_set():
            await self._gate.wait()
        self._require_alive()
        self._busy += 1
        self.lifetime.called(time.time())
        try:
            return await self.execution.run(seq, request)
        except GuestLost as error:
            raise await self.dead_by(error) from error
        finally:
            self._busy -= 1
            self.lifetime.called(time.time())
            if not self._busy:
                self._quiet.set()

    def _ended(self, seq: int, request: Request, answer: Answer) -> None:
        """A call's end is in the log."""
        if request.verb in ("exec", "write", "remove", "upload"):
            self._do(self._forget(self.execution.job(seq)))
        every = self.record.spec.snapshot_every
        if request.is_mutating and every is not None:
            self._since_snapshot += 1
            if self._since_snapshot == every:
                self._do(self._snapshot_by_itself(seq))

    async def _snapshot_by_itself(self, seq: int) -> None:
        try:
            await self.snapshot(f"{self.record.id}-auto-{seq}", is_asked=False)
        except NotSupported as error:
            await self.log.note("no snapshot", detail=str(error))
        except SandboxError as error:
            self._since_snapshot = 0  # the next one may succeed
            await self.log.note("no snapshot", detail=str(error))

    async def _exit(self, seq: int) -> Answer:
        self._require_alive()
        try:
            result = await self.execution.exit(seq)
        except GuestLost as error:
            raise await self.dead_by(error) from error
        value, data = pack_result(result)
        answer = Answer(value=value, data=data, seq=seq)
        await self.log.exited(seq, answer)
        self._do(self._forget(self.execution.job(seq)))
        return answer

    async def _forget(self, job: str) -> None:
        with contextlib.suppress(GuestLost):
            while self._readers[job]:
                await asyncio.sleep(0.01)
            del self._readers[job]
            await self.guest.forget(job)

    async def _drain(self, seq: int) -> None:
        with contextlib.suppress(GuestLost, KeyError):
            async with contextlib.aclosing(self.read_output(seq)) as chunks:
                async for _ in chunks:
                    pass

    def _do(self, chore: Coroutine[Any, Any, None]) -> None:
        """In the background, until it is done or the sandbox is gone."""
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def _stop_chores(self) -> None:
        for server in self._ports.values():
            server.close()
        mine = asyncio.current_task()
        for task in [*self._waits.values(), *self._chores]:
            if task is not mine:
                task.cancel()

    def _become(self, state: State, **facts: Any) -> None:
        assert self.record.state is not State.DEAD, "the dead do not change"
        self.record = replace(self.record, state=state, **facts)
        self._owner.changed(self.record)

    def _require_alive(self) -> None:
        if self.record.state is State.DEAD:
            raise self._grave()

    def _grave(self) -> SandboxDied:
        return SandboxDied(self.record.id, self.record.reason or Reason.CRASHED, self.record.detail)


def info_of(record: SandboxRecord, next_seq: int, usage: Usage | None = None) -> SandboxInfo:
    """A record as others see it."""
    return SandboxInfo(
        id=record.id,
        spec=record.spec,
        state=record.state,
        reason=record.reason,
        detail=record.detail,
        next_seq=next_seq,
        created_s=record.created_s,
        start_s=record.start_s,
        usage=usage or Usage(),
    )


def kept_chunks(answer: Answer) -> list[Chunk]:
    """The kept output of an ended command, one piece a stream."""
    if answer.error is not None:
        return []
    result = unpack_result(answer.value, answer.data)
    chunks = [Chunk("stdout", result.stdout), Chunk("stderr", result.stderr)]
    return [chunk for chunk in chunks if chunk.data]


def checked_name(name: Any) -> str | None:
    """A snapshot's name as its caller gave it.

    Raises:
        RequestError: it could be a path, or something else.
    """
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise RequestError(f"a snapshot's name is 1 to 64 letters, digits, . _ -, and not {shown(name)}", param="name")
    return name


def checked_count(count: Any) -> int:
    """How many forks were asked for.

    Raises:
        RequestError: none, or more than any host may start at once.
    """
    if not isinstance(count, int) or not 1 <= count <= MAX_FORKS:
        raise RequestError(f"count ({shown(count)}) must be in 1..{MAX_FORKS}", param="count")
    return count
