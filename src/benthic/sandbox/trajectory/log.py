"""The trajectory that is being written: the promise that every call runs once.

A call that can change the sandbox is written down before it runs (`begin`) and when it has ended (`end`), each time
safely on disk before anything follows from it: before the call runs, and before it is answered. So after any crash
each call is in one of three states, and never in doubt about which: not begun, so it did not run; ended, so its answer
is here; or begun and not ended, for which the sandbox's own job table or the caller's policy must speak.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from benthic.sandbox.errors import TrajectoryUnwritable
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.trajectory.blobs import BlobStore
from benthic.sandbox.trajectory.entries import FORMAT, Head, RecordType, canonical, request_hash
from benthic.sandbox.trajectory.file import LogFile
from benthic.sandbox.trajectory.frames import Frame, Payload
from benthic.sandbox.trajectory.reader import Trajectory

T = TypeVar("T")

INLINE_BYTES = 1 << 18
"""Larger values become blobs: two more syncs, but the log stays quick to scan."""


class TrajectoryLog(Trajectory):
    """One sandbox's log, with this process as its only writer."""

    def __init__(self, path: Path, blobs: BlobStore, file: LogFile, executor: Executor | None) -> None:
        super().__init__(path, blobs)
        self._file = file
        self._executor = executor
        self._order = asyncio.Lock()

    @classmethod
    async def create(
        cls, path: Path, blobs: BlobStore, head: Head, *, executor: Executor | None = None
    ) -> "TrajectoryLog":
        """A new log, safely on disk.

        Raises:
            FileExistsError: there is one already.
            TrajectoryUnwritable: the disk is full or failed; no log is left.
        """
        file, _ = await _in_thread(executor, lambda: LogFile.open(path, create=True, executor=executor))
        log = cls(path, blobs, file, executor)
        parent, spec = list(head.parent) if head.parent else None, head.spec
        facts = {"sandbox_id": head.sandbox_id, "spec": spec, "parent": parent, "snapshot": head.snapshot}
        try:
            log._append("head", head.created_s or time.time(), {"format": FORMAT, **facts})
            await log.sync()
        except BaseException:
            await file.close()
            path.unlink()
            raise
        return log

    @classmethod
    async def open(cls, path: Path, blobs: BlobStore, *, executor: Executor | None = None) -> "TrajectoryLog":
        """Takes an existing log for writing, and drops what a crash has left half written.

        Raises:
            FileNotFoundError: there is none.
            TrajectoryHeld: another process writes it.
            TrajectoryCorrupt: its bytes are not what was written.
        """
        file, found = await _in_thread(executor, lambda: LogFile.open(path, executor=executor))
        log = cls(path, blobs, file, executor)
        try:
            log._index_all(found)
        except BaseException:
            await file.close()
            raise
        return log

    async def begin(self, seq: int, request: Request, hashed: str | None = None, *, is_synced: bool = True) -> None:
        """Writes down that the call of the next place is about to run. Calls begin in the order in which they come.

        Args:
            hashed: the request's hash if it is known already.
            is_synced: whether to wait for the disk. Without, the record survives the death of every process but not
                the machine's: enough for a sandbox that a dead machine takes with it.

        Raises:
            TrajectoryUnwritable: it must not run.
        """
        facts = {"verb": request.verb, "hash": hashed or request_hash(request), "arguments": request.arguments}
        await self._append_next("begin", seq, facts, request.data)
        if is_synced:
            await self.sync()

    async def end(self, seq: int, answer: Answer, *, is_synced: bool = True) -> None:
        """Writes down what a call came to; it may be answered once this returns.

        Raises:
            TrajectoryUnwritable: it must not be answered.
        """
        await self._append_answer("end", seq, answer, is_synced)

    async def done(
        self, seq: int, request: Request, answer: Answer, hashed: str | None = None, *, is_synced: bool = True
    ) -> None:
        """Writes down a call of the next place that changed nothing, and what it came to."""
        assert not request.data, request
        facts = {"verb": request.verb, "hash": hashed or request_hash(request), "arguments": request.arguments}
        await self._append_next("done", seq, facts | _outcome(answer), answer.data)
        if is_synced:
            await self.sync()

    async def exited(self, seq: int, answer: Answer, *, is_synced: bool = True) -> None:
        """Writes down how a spawned command ended."""
        assert self._places[seq].verb == "spawn", self._places[seq]
        await self._append_answer("exit", seq, answer, is_synced)

    async def note(self, what: str, **facts: Any) -> None:
        """Writes down what else happened."""
        self._append("note", time.time(), {"what": what, **facts})
        await self.sync()

    async def sync(self) -> None:
        """Until all that was appended before this call is on disk."""
        await self._file.sync()

    async def close(self) -> None:
        """Lets go of the log; it stays."""
        await self._file.close()

    async def _append_next(self, kind: RecordType, seq: int, facts: dict[str, Any], data: bytes) -> None:
        async with self._order:  # first come, first served
            blob = await self._blob(data)
            if seq != self.next_seq:
                raise TrajectoryUnwritable(
                    f"place {seq} cannot begin, since place {self.next_seq} never did; send that"
                )
            self._append(kind, time.time(), {"seq": seq, **facts, **blob}, b"" if blob else data)

    async def _append_answer(self, kind: RecordType, seq: int, answer: Answer, is_synced: bool) -> None:
        blob = await self._blob(answer.data)
        self._append(kind, time.time(), {"seq": seq, **_outcome(answer), **blob}, b"" if blob else answer.data)
        if is_synced:
            await self.sync()

    def _append(self, kind: RecordType, at: float, facts: dict[str, Any], data: bytes = b"") -> None:
        text = {"type": kind, "at": at, **facts}
        self._index(self._file.append(canonical(text), data), text)

    async def _blob(self, data: bytes) -> dict[str, str]:
        if len(data) <= INLINE_BYTES:
            return {}
        return {"blob": await _in_thread(self._executor, lambda: self.blobs.put(data))}

    def _payload(self, frame: Frame) -> Payload:
        return self._file.read(frame)


def _outcome(answer: Answer) -> dict[str, Any]:
    return {"value": answer.value} | ({"error": answer.error} if answer.error else {})


async def _in_thread(executor: Executor | None, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(executor, work)
