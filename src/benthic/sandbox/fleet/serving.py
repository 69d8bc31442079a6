"""Serves an application of the fleet on a TCP port or a unix socket that only its owner can open."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI

from benthic.errors import ConfigError

_BACKLOG = 2048
_KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection (`connection.py`), so that none is closed under a request."""
_GOODBYE_S = 2


async def serve(app: FastAPI, listen: str) -> None:
    """Until the process is asked to end (SIGTERM or SIGINT), or the task is cancelled.

    Raises:
        ConfigError: the address cannot be used.
    """
    listener = bind(listen)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GOODBYE_S,
        backlog=_BACKLOG,
        ws="auto",
    )
    server = uvicorn.Server(config)
    try:
        with _ended_once():
            await server.serve(sockets=[listener])
    except asyncio.CancelledError:
        config.timeout_graceful_shutdown = 0
        await server.shutdown(sockets=[listener])
        raise
    finally:
        listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # whoever waits for an answer asks again elsewhere, at once


@contextlib.contextmanager
def _ended_once() -> Iterator[None]:
    """uvicorn raises the signal that ended it once more, and what follows must run; a further one is heeded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heeded = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)


def bind(listen: str) -> socket.socket:
    """The listening socket of `http://address:port` or `unix:/path`.

    Raises:
        ConfigError: the address is taken or is none.
    """
    try:
        if listen.startswith("unix:"):
            return _bind_unix(Path(listen.removeprefix("unix:")))
        parts = urlsplit(listen)
        family = socket.AF_INET6 if ":" in (parts.hostname or "") else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((parts.hostname, parts.port))
        return listener
    except OSError as error:
        raise ConfigError(f"listen ({listen}) cannot be used: {error.strerror or error}; choose another") from None


def _bind_unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        raise OSError(errno.EADDRINUSE, "somebody answers there")
    path.unlink(missing_ok=True)  # left by one that was killed
    old_mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(old_mask)
    return listener
