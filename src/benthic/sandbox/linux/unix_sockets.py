"""Unix sockets in homes, whose paths may be longer than the 108 bytes that a socket's address holds."""

import asyncio
import errno
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BACKLOG = 16
_PAUSE_S = 0.005


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A path of a few bytes to the same file, valid in this process while the block runs."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@contextmanager
def socket_of(path: Path, uid: int) -> Iterator[str]:
    """A path to the socket there, in a folder of a program that is not trusted: it may have put a link to another one.

    Raises:
        OSError: there is nothing, or no socket of that user's.
    """
    handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(handle)
        if not stat.S_ISSOCK(status.st_mode) or status.st_uid != uid:
            raise PermissionError(errno.EPERM, f"no socket of uid {uid}", str(path))
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket at `path`, for root alone, to be handed to a program; the block's end closes our copy only."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        with short_path(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(_BACKLOG)
        yield listener


async def take_socket(made: Path, target: Path, *, limit_s: float) -> None:
    """Waits until a sandbox's first process listens on a socket, and moves that to where the host alone reaches it.

    Not before: gVisor looks the name up again between making a socket and listening on it.

    Raises:
        TimeoutError: nobody listened within `limit_s`.
    """
    async with asyncio.timeout(limit_s):
        while not _is_heard(made):
            await asyncio.sleep(_PAUSE_S)
    made.rename(target)


def _is_heard(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as caller:
        try:
            with short_path(path) as address:
                caller.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
