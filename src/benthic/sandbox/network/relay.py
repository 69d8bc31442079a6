"""Carries bytes both ways between two streams until both directions have ended."""

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress

CHUNK_BYTES = 1 << 16

Stream = tuple[StreamReader, StreamWriter]


async def relay(one: Stream, other: Stream) -> None:
    """Returns when both sides have sent their last byte, or one of them has broken; both are then closed.

    A side that is slow to take bytes slows the side that sends them.
    """
    directions = [
        asyncio.ensure_future(_carry(one[0], other[1])),
        asyncio.ensure_future(_carry(other[0], one[1])),
    ]
    try:
        await asyncio.gather(*directions)
    except OSError:
        pass  # the other direction has nowhere to go either
    finally:
        for direction in directions:
            direction.cancel()
        for writer in (one[1], other[1]):
            writer.close()


async def close(writer: StreamWriter) -> None:
    """Closes a stream and waits for what is still to be sent."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _carry(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        with suppress(OSError):
            writer.write_eof()
