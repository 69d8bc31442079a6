"""From an application to a listening server, and from a stop signal to a clean end.

The socket listens only after everything works, so a client never waits in a queue behind the loader. The first stop
signal drains: running requests finish, new ones get 503. The second ends at once.
"""

import asyncio
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from benthic.server.channel import Channel
from benthic.server.config import ServerConfig
from benthic.server.listen import url_of

_DRAIN_POLL_S = 0.05
_FORCED_END_S = 3.0


def run(
    app: FastAPI, channel: Channel, config: ServerConfig, listener: socket.socket, ready: Callable[[str], None]
) -> None:
    """Serve until a stop signal; returns after the last request has ended.

    Args:
        app: the application.
        channel: drained at the first stop signal.
        config: keep-alive and drain times.
        listener: a bound socket; closed in the end.
        ready: called with the server's URL once it answers.
    """
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=round(_FORCED_END_S), server_header=False
    )
    server = _DrainingServer(settings, channel, config.drain_s, lambda: ready(url_of(listener)))
    with listener:
        server.run(sockets=[listener])


class _DrainingServer(uvicorn.Server):
    """uvicorn, but a stop signal first drains and only then closes the listening socket."""

    def __init__(self, config: uvicorn.Config, channel: Channel, drain_s: float, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._channel = channel
        self._drain_s = drain_s
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._loop = asyncio.get_running_loop()
        if self.started:
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._channel.is_draining or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        self._channel.is_draining = True
        self._loop.call_soon_threadsafe(self._start_drain)

    def _start_drain(self) -> None:
        self._drain = asyncio.ensure_future(self._wait_until_idle())

    async def _wait_until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain_s
        while self._channel.num_open and loop.time() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        self.should_exit = True
