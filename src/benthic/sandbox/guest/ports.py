"""TCP ports of a sandbox's own loopback, reached from the host through init: one job a connection."""

import asyncio
import os
from contextlib import aclosing, suppress
from pathlib import Path

from benthic.sandbox.errors import GuestLost, PathError
from benthic.sandbox.guest.connection import UnknownJob
from benthic.sandbox.guest.files import passing_id
from benthic.sandbox.guest.job_calls import JobCalls
from benthic.sandbox.guest.jobs import FEED_BYTES
from benthic.sandbox.guest.streams import listen_unix

PIECE_BYTES = FEED_BYTES
"""Of what goes inside at once: each piece waits for its answer, and a machine is slow to give one."""
SIZE_BYTES = 20
"""Of a number that a connection's job writes."""


async def serve_port(jobs: JobCalls, port: int, path: Path) -> asyncio.Server:
    """A unix socket at `path` that leads to a port inside, for as many connections as come."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(PathError, GuestLost, OSError):  # what the client sees is a closed connection
            await forward(jobs, port, reader, writer)

    return await asyncio.start_unix_server(serve, sock=listen_unix(path), limit=PIECE_BYTES)


async def forward(jobs: JobCalls, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Carries one connection both ways until the far end has closed its side.

    Raises:
        PathError: nothing listens there.
    """
    job = passing_id()
    jobs.start(job, b"", argv=["connect", str(port)], is_file_call=True, holds_output=True, input_ends=False)
    await carry(jobs, job, reader, writer, what=f"port {port}")


async def carry(
    jobs: JobCalls, job: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, what: str = "connection"
) -> None:
    """Carries the connection of a job both ways until it has ended, and forgets it.

    Raises:
        PathError: the job could not do it.
    """
    asked = jobs.ask_end(job)
    sending = asyncio.create_task(_send(jobs, job, reader))
    carried, size, told = 0, -1, b""
    try:
        async with aclosing(jobs.output(job)) as chunks:
            async for chunk in chunks:
                if chunk.stream == "stdout":
                    writer.write(chunk.data)
                    await writer.drain()
                    carried += len(chunk.data)
                else:  # the inner side has sent its last byte, and still reads
                    told = (told + chunk.data)[:SIZE_BYTES]
                    size = int(told) if told.strip().isdigit() and told.endswith(b"\n") else -1
                if carried == size and writer.can_write_eof():
                    writer.write_eof()
        end = await jobs.end(asked, None)
        if end.failure:
            raise PathError(what, f"{end.failure}: {os.strerror(end.errno)}")
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
        await jobs.forget(job)


async def _send(jobs: JobCalls, job: str, reader: asyncio.StreamReader) -> None:
    with suppress(UnknownJob):
        while data := await reader.read(PIECE_BYTES):
            await jobs.feed(job, data)
        await jobs.feed(job, None)
