"""Unix sockets whose path is longer than the 108 bytes that an address holds: reached through an open folder."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ADDRESS_MAX = 100


async def connect_unix(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream to a unix socket at a path of any length; raises OSError."""
    with _short(path) as address:
        return await asyncio.open_unix_connection(address)


def listen_unix(path: Path, backlog: int = 16) -> socket.socket:
    """A listening unix socket at a path of any length, which must be free; readable by its owner alone."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            listener.bind(address)
        os.chmod(path, 0o600)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


@contextmanager
def _short(path: Path) -> Iterator[str]:
    if len(os.fsencode(path)) <= ADDRESS_MAX:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
