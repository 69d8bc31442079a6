"""Jobs of init, below commands and file calls alike: start, feed, read, wait, forget."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from typing import Any

from benthic.sandbox.errors import GuestLost
from benthic.sandbox.guest.connection import WINDOW, Connection
from benthic.sandbox.guest.frames import Frame
from benthic.sandbox.guest.jobs import FEED_BYTES, JobEnd, checked_id, end_of, job_infos_of, number_of
from benthic.sandbox.guest.records import JobInfo
from benthic.sandbox.records import Chunk

GRACE_S = 10.0
"""How much longer than its time a job may seem to run before its guest counts as lost."""
WATCH_S = 0.5


class JobCalls:
    """What can be asked of a job whatever it does."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._fed: dict[str, int] = {}
        self._feeding: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.is_paused = False

    def start(self, job: str, data: bytes, **fields: Any) -> asyncio.Future[Frame]:
        """Asks for a job whose input begins with `data`; a known id is joined instead."""
        return self._connection.post("start", data[:FEED_BYTES], job=checked_id(job), **fields)

    def fed_bytes(self, job: str, answer: Frame) -> int:
        """How much input init has, as its answer to `start` says."""
        self._fed[job] = number_of(answer.header, "fed")
        return self._fed[job]

    def ask_end(self, job: str) -> asyncio.Future[Frame]:
        """Asks for the end, to be given to `end`."""
        return self._connection.post("wait", job=job)

    async def end(self, asked: asyncio.Future[Frame], limit_s: float | None) -> JobEnd:
        """Waits for an end, and for no longer than is plausible."""
        waited_s = 0.0
        while not asked.done():
            await asyncio.wait([asked], timeout=WATCH_S)
            waited_s += 0 if self.is_paused else WATCH_S
            if limit_s is not None and waited_s > limit_s + GRACE_S and not asked.done():
                asked.cancel()
                raise GuestLost(f"init did not end a command that had {limit_s} s within {waited_s:.0f} s")
        return end_of(asked.result())

    async def kept(self, job: str, stream: int, size: int) -> bytes:
        """One stream's kept output, if it did not come with the end."""
        kept = bytearray()
        while len(kept) < size:
            piece = (await self._connection.request("kept", job=job, stream=stream, start=len(kept))).body
            if not piece or len(kept) + len(piece) > size:
                raise GuestLost(f"init said it kept {size} bytes of an output, and sent {len(kept) + len(piece)}")
            kept += piece
        return bytes(kept)

    async def output(self, job: str, *, stdout: int = 0, stderr: int = 0) -> AsyncGenerator[Chunk, None]:
        """A job's output from these offsets, then as it comes, until it ends.

        While somebody reads, a command that prints faster waits. What was dropped before is skipped. One reader a job:
        a second one takes over.

        Raises:
            UnknownJob: init does not know the id.
        """
        reader = self._connection.read_output(job, stdout, stderr)
        end = self._connection.post("wait", job=job)
        end.add_done_callback(lambda _: reader.end())  # it is answered after the last output
        given_bytes = 0
        try:
            while reader.pieces or not reader.is_over:
                if not reader.pieces:
                    reader.arrived.clear()
                    await reader.arrived.wait()
                    continue
                chunk = reader.take()
                yield chunk
                given_bytes += len(chunk.data)
                if given_bytes >= WINDOW // 2:
                    given_bytes = 0
                    self._connection.allow_more(reader)
            if end.done():
                end.result()
        finally:
            end.cancel()
            self._connection.stop_reading(reader)

    async def feed(self, job: str, data: bytes | None) -> None:
        """More input, returned once init has taken it and room is left; None ends the input.

        A command that does not read its input makes this wait; one that has closed it makes it return at once.

        Raises:
            UnknownJob: init does not know the id.
        """
        async with self._feeding[job]:
            if job not in self._fed:
                infos = await self.table()
                self._fed[job] = next((info.fed_bytes for info in infos if info.job == job), 0)
            if data is None:
                await self._connection.request("feed", job=job, offset=self._fed[job], input_ends=True)
                return
            for start in range(0, len(data), FEED_BYTES):
                piece = data[start : start + FEED_BYTES]
                await self._connection.request("feed", piece, job=job, offset=self._fed[job])
                self._fed[job] += len(piece)

    async def table(self) -> list[JobInfo]:
        """All jobs that init knows."""
        return job_infos_of(await self._connection.request("jobs"))

    async def forget(self, job: str) -> None:
        """Frees what init keeps of a job, after ending it if it runs."""
        await self._connection.request("forget", job=job)
        self._fed.pop(job, None)
        self._feeding.pop(job, None)
