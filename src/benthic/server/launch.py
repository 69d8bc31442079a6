"""From an application to a listening server, and from a stop signal to a clean end.

The socket listens only after everything works, so a client never waits in a queue behind the loader. The first stop
signal drains: running requests finish, new ones get 503. The second cuts what runs, each stream with an error object,
and ends at once, whatever the engine is doing.
"""

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

import uvicorn
from fastapi import FastAPI

from benthic.errors import ConfigError
from benthic.server.connection import Connection, Connections
from benthic.server.errors import cut_off
from benthic.server.listen import allow_connections, url_of
from benthic.server.service import Service

_DRAIN_POLL_S = 0.05
_LAST_WORDS_S = 3
"""After draining, answers that are already written have this long to leave."""
_SWEEP_TICKS = 2
_CUT_S = 0.5
"""After a second stop signal, streams have this long to say why they end."""


class DrainingServer(uvicorn.Server):
    """uvicorn, but a stop signal first drains and only then closes the listening socket.

    Args:
        app: the application.
        service: behind it; its channel is drained at the first stop signal, its configuration has the limits.
        listener: a bound socket; closed in the end.
        ready: called with the server's URL once it answers.
    """

    def __init__(
        self,
        app: FastAPI,
        service: Service,
        *,
        listener: socket.socket,
        ready: Callable[[str], None],
    ) -> None:
        config = service.config
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                timeout_keep_alive=math.ceil(config.idle_timeout_s),
                log_config=None,  # its records go where all others go
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=_LAST_WORDS_S,
            )
        )
        limits = replace(config, max_connections=allow_connections(config.max_connections))
        answered = service.metrics.requests
        self._connections = Connections(limits, lambda status: answered.labels("none", str(status)).inc())
        self.server_state = self._connections
        # What strangers send is counted; a line for each would fill the log.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._channel = service.channel
        self._listener = listener
        self._drain_s = config.drain_s
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_cut = False

    def serve_until_stopped(self) -> None:
        """Blocks until a stop signal and the end of the last request.

        Raises:
            ConfigError: another process listens on the port by now.
        """
        try:
            with self._listener:
                self.run(sockets=[self._listener])
        finally:
            self._channel.end_threads()

    def stop(self) -> None:
        """Drain, and end at once when called again; from any thread or signal handler."""
        if self._loop is None or self._loop.is_closed() or self._is_cut:
            self._force()
            return
        if self._channel.is_draining:
            self._is_cut = True
            self._loop.call_soon_threadsafe(self._cut)
            return
        self._channel.is_draining = True
        self._loop.call_soon_threadsafe(self._start_drain)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """uvicorn's start, then the news that it is done."""
        try:
            await super().startup(sockets)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {url_of(self._listener)}: {error.strerror}; choose another port"
            ) from None
        self._loop = asyncio.get_running_loop()
        self._ready(url_of(self._listener))

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second, from uvicorn's loop."""
        if counter % _SWEEP_TICKS == 0:
            self._connections.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A stop signal came. Not kept for uvicorn to raise again: a drained server ends with exit code 0."""
        self.stop()

    def _cut(self) -> None:
        self._channel.close_s = _CUT_S
        self._channel.fail_all(cut_off())
        self.should_exit = True
        asyncio.get_running_loop().call_later(_CUT_S, self._force)

    def _force(self) -> None:
        self._channel.close_s = min(self._channel.close_s, _CUT_S)
        # uvicorn would report its own cancelled tasks with tracebacks.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.should_exit = self.force_exit = True

    def _start_drain(self) -> None:
        self._drain = asyncio.ensure_future(self._wait_until_idle())

    async def _wait_until_idle(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._drain_s
        while not self._channel.is_idle and loop.time() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        self._channel.fail_all(cut_off())
        self.should_exit = True
