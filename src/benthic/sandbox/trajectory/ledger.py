"""Exactly once: answers each call of a trajectory from its log, joins it while it runs, or runs it.

    the log has its end           the logged answer, `is_replayed`; nothing runs
    it runs just now              the same run's answer
    the log has only its begin    a crash came between: it is run again under the same job id, which the sandbox's own
                                  job table joins to what ran before
    it is the next one            written down, run, written down, answered
    it comes too early            it waits for the ones before it, which travel beside it
    it differs from the log       TrajectoryDiverged; nothing runs

Runs belong to the ledger and not to the caller: one that goes away loses nothing and disturbs nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from benthic.errors import RequestError, SandboxError
from benthic.sandbox.errors import TrajectoryDiverged, TrajectoryHeld
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.trajectory.entries import difference, request_hash
from benthic.sandbox.trajectory.log import INLINE_BYTES, TrajectoryLog
from benthic.sandbox.trajectory.reader import Trajectory
from benthic.sandbox.wire import pack_error

Run = Callable[[int, Request], Awaitable[Answer]]
"""Runs a call under its place's job id. Raises errors that are `is_infra` when it is not known how it ended."""
Ended = Callable[[int, Request, Answer], None]

EARLY_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class _Flight:
    request: Request
    hashed: str
    task: "asyncio.Task[Answer]"


class Ledger:
    """The calls of one living sandbox.

    Law: `_next`, the first place that nobody has claimed, is never below the log's and passes it only by runs that
    have not yet been written down.
    """

    def __init__(self, log: TrajectoryLog, run: Run, ended: Ended | None = None) -> None:
        self.log = log
        self._run = run
        self._ended = ended
        self._flights: dict[int, _Flight] = {}
        self._early: dict[int, asyncio.Future[None]] = {}
        self._next = log.next_seq

    @property
    def running(self) -> list[int]:
        """Places of the calls that run now."""
        return sorted(self._flights)

    async def call(self, seq: int, request: Request) -> Answer:
        """See the module's docstring.

        Raises:
            TrajectoryDiverged: another call was logged at this place, or none at the place before.
            TrajectoryUnwritable: the log's disk; the call may be sent again.
            SandboxError: whatever `run` raises that is `is_infra`; the call stays open.
        """
        hashed = await hash_of(request)
        if seq not in self._flights and self.log.place(seq) is None:
            await self._turn(seq)
        flight = self._flights.get(seq)
        if flight is None:
            answer = logged_answer(self.log, seq, request, hashed)
            if answer is not None:
                await self.log.sync()  # what a failed sync has left in doubt is not an answer
                return answer
            flight = self._launch(seq, request, hashed)
        elif flight.hashed != hashed:
            raise _diverged(seq, flight.request, request)
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if me is not None and me.cancelling():
                raise
            raise TrajectoryHeld(
                f"call {seq} runs on, but this process has let go of it; ask who owns it now"
            ) from None

    def settle(self) -> list["asyncio.Task[Answer]"]:
        """Takes up every call that a crash left open; what they come to is written down."""
        open_calls = [place.seq for place in self.log.places() if place.end is None and place.seq not in self._flights]
        entries = [self.log.entry(seq) for seq in open_calls]
        return [self._launch(entry.seq, entry.request, entry.request_hash).task for entry in entries]

    async def close(self, *, wait_s: float = 0.0) -> None:
        """Stops following the runs, after a while in which they may end; the others stay open in the log."""
        tasks = [flight.task for flight in self._flights.values()]
        if tasks and wait_s:
            await asyncio.wait(tasks, timeout=wait_s)
        for task in tasks:
            task.cancel()
        for waiting in self._early.values():
            waiting.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _turn(self, seq: int) -> None:
        """Until the places before this one are claimed."""
        if seq <= self._next:
            return
        waiting = self._early.setdefault(seq, asyncio.get_running_loop().create_future())
        try:
            await asyncio.wait_for(asyncio.shield(waiting), EARLY_WAIT_S)
        except TimeoutError:
            self._early.pop(seq, None)
            raise TrajectoryDiverged(
                f"call {seq} came {EARLY_WAIT_S:.0f} s ago, and call {self._next} before it never did; send that first"
            ) from None

    def _launch(self, seq: int, request: Request, hashed: str) -> _Flight:
        task = asyncio.create_task(self._fly(seq, request, hashed), name=f"call {seq}")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # its callers may all have left
        flight = self._flights[seq] = _Flight(request, hashed, task)
        self._next = max(self._next, seq + 1)
        early = self._early.pop(self._next, None)
        if early is not None and not early.done():
            early.set_result(None)
        assert self._next >= self.log.next_seq, (self._next, self.log.next_seq)
        return flight

    async def _fly(self, seq: int, request: Request, hashed: str) -> Answer:
        try:
            if not request.is_mutating:
                answer = await outcome_of(self._run(seq, request))
                await self.log.done(seq, request, answer, hashed)
            else:
                if self.log.place(seq) is None:
                    await self.log.begin(seq, request, hashed)
                await self.log.sync()  # an open call of a log that has failed must not run
                answer = await outcome_of(self._run(seq, request))
                await self.log.end(seq, answer)
        finally:
            del self._flights[seq]
            if self.log.place(seq) is None:
                self._next = min(self._next, seq)
        if self._ended is not None:
            self._ended(seq, request, answer)
        return replace(answer, seq=seq)


async def outcome_of(running: Awaitable[Answer]) -> Answer:
    """What a run came to; errors that are the caller's or the agent's doing are answers too."""
    try:
        return await running
    except SandboxError as error:
        if error.is_infra:
            raise
        return pack_error(error)
    except RequestError as error:
        return pack_error(error)
    except ValueError as error:  # arguments that only the one who runs the call could find wrong
        return pack_error(RequestError(str(error)))


def logged_answer(log: Trajectory, seq: int, request: Request, hashed: str | None = None) -> Answer | None:
    """What a log says that a call came to; None if it has no end for it.

    Raises:
        TrajectoryDiverged: another call was logged at its place.
    """
    place = log.place(seq)
    if place is None:
        return None
    if place.request_hash != (hashed or request_hash(request)):
        raise _diverged(seq, log.entry(seq).request, request)
    return log.answer(seq)


def _diverged(seq: int, logged: Request, asked: Request) -> TrajectoryDiverged:
    return TrajectoryDiverged(
        f"call {seq} differs from the logged one: {difference(logged, asked)}; "
        "send what was logged, or branch before this place"
    )


async def hash_of(request: Request) -> str:
    """The request's hash; of a large one not at the others' cost."""
    if len(request.data) <= INLINE_BYTES:
        return request_hash(request)
    return await asyncio.to_thread(request_hash, request)
