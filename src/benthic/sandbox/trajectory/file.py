"""An append-only file of frames with one writer, which says of each frame when it is safe.

Room is taken from the disk in pieces ahead of the frames, as zeros: then a frame changes nothing of the file but its
own bytes, and its sync is half as long. Zeros behind the last frame are no part of the log.

Laws: `synced <= end`; a frame is either whole in the file or taken back; after a failed sync nothing is appended any
more, since the kernel may have dropped pages it could not write, and a later sync would say that all is well.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
from concurrent.futures import Executor
from pathlib import Path

from benthic.sandbox.errors import TrajectoryHeld, TrajectoryUnwritable
from benthic.sandbox.trajectory import frames
from benthic.sandbox.trajectory.frames import CHAIN_START, Frame, Payload, Scan

LEAST_ROOM_BYTES, MOST_ROOM_BYTES = 1 << 16, 1 << 20


class LogFile:
    """The writer's end. Its lock falls with the process, however that ends."""

    def __init__(self, path: Path, descriptor: int, found: Scan, executor: Executor | None = None) -> None:
        self.path = path
        self._descriptor = descriptor
        self._executor = executor
        self._end = self._synced = found.end
        self._room = os.fstat(descriptor).st_size
        """Bytes that the file has on disk, frames or zeros."""
        self._chain = found.frames[-1].chain if found.frames else CHAIN_START
        self._broken: str | None = None
        self._syncing: asyncio.Future[None] | None = None

    @classmethod
    def open(cls, path: Path, *, create: bool = False, executor: Executor | None = None) -> tuple["LogFile", Scan]:
        """Takes the file for writing and drops a torn tail.

        Args:
            create: the file must not be there yet; else it must.
            executor: threads that sync; None takes the event loop's own.

        Raises:
            TrajectoryHeld: another writer has it.
            TrajectoryCorrupt: its bytes are not what was written.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            _lock(descriptor, path)
            found = frames.scan(descriptor, path)
            if found.torn_bytes:
                os.ftruncate(descriptor, found.end)
            os.fsync(descriptor)  # what a dead writer had not yet synced counts from here on
            if create:
                sync_folder(path.parent)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, found, executor), found

    @property
    def end(self) -> int:
        """Bytes in the file."""
        return self._end

    @property
    def chain(self) -> bytes:
        """Digest of all that was appended."""
        return self._chain

    def append(self, text: bytes, data: bytes = b"") -> Frame:
        """Writes a frame, which survives the death of this process from here on, but not yet the machine's.

        Raises:
            TrajectoryUnwritable: the disk is full or failed; the file is as before.
        """
        self._refuse_if_broken()
        whole, frame = frames.encode(text, data, start=self._end, synced=self._synced, chain=self._chain)
        try:
            self._make_room(frame.end)
            _write_at(self._descriptor, whole, self._end)
        except OSError as error:
            self._take_back()
            raise TrajectoryUnwritable(f"{self.path}: a record of {len(whole)} bytes was refused: {error}") from error
        self._end, self._chain = frame.end, frame.chain
        return frame

    async def sync(self) -> None:
        """Until all that was appended before this call is on disk. Callers that come together share one sync.

        Raises:
            TrajectoryUnwritable: it may not be.
        """
        wanted = self._end
        while self._synced < wanted:
            if self._syncing is None or self._syncing.done():
                self._refuse_if_broken()
                loop = asyncio.get_running_loop()
                self._syncing = loop.run_in_executor(self._executor, self._sync_up_to, self._end)
            await asyncio.shield(self._syncing)  # a caller that leaves does not leave the others without

    def _sync_up_to(self, end: int) -> None:
        """In a thread of the executor."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._broken = f"a failed sync ({error})"
            raise TrajectoryUnwritable(f"{self.path}: {error} while syncing; its last records may be lost") from error
        assert self._synced <= end <= self._end, (self._synced, end, self._end)
        self._synced = end

    def read(self, frame: Frame) -> Payload:
        """A frame's payload, proved again.

        Raises:
            TrajectoryCorrupt: it is not what was written.
        """
        return frames.read(self._descriptor, frame, self.path)

    async def close(self) -> None:
        """Syncs and lets go. A second call does nothing."""
        if self._descriptor < 0:
            return
        try:
            if not self._broken:
                await self.sync()
        finally:
            if self._syncing is not None:
                await asyncio.wait([self._syncing])  # the descriptor's number may be given to another file at once
            if not self._broken:
                self._take_back()
            os.close(self._descriptor)
            self._descriptor, self._broken = -1, "being closed"

    def _refuse_if_broken(self) -> None:
        if self._broken:
            raise TrajectoryUnwritable(f"{self.path} takes no more records after {self._broken}; open it again")

    def _make_room(self, end: int) -> None:
        if end <= self._room:
            return
        room = end + min(max(LEAST_ROOM_BYTES, self._end // 4), MOST_ROOM_BYTES)
        with contextlib.suppress(OSError):  # a disk that is nearly full: then the frame alone may fit
            os.posix_fallocate(self._descriptor, self._room, room - self._room)
            self._room = room

    def _take_back(self) -> None:
        """Cuts off whatever lies behind the last frame."""
        try:
            os.ftruncate(self._descriptor, self._end)
            self._room = self._end
        except OSError as error:
            self._broken = f"a record that could not be taken back ({error})"


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder safe."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise TrajectoryHeld(f"{path} is being written by another process; a trajectory has one writer") from error


def _write_at(descriptor: int, whole: bytes, start: int) -> None:
    rest = memoryview(whole)
    while rest:
        count = os.pwrite(descriptor, rest, start)
        if count == 0:
            raise OSError(errno.EIO, "nothing was written")
        rest, start = rest[count:], start + count
