"""Unix sockets in homes, whose paths may be longer than the 108 bytes that a socket's address holds."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BACKLOG = 16


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A path of a few bytes to the same file, valid in this process while the block runs."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    """A listening socket at `path`, for root alone, to be handed to a program; the block's end closes our copy only."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
        with short_path(path) as address:
            listener.bind(address)
        path.chmod(0o600)
        listener.listen(_BACKLOG)
        yield listener
