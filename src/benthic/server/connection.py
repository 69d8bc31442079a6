"""One TCP connection, with every phase of it bounded: uvicorn's HTTP/1.1 protocol takes its time, a server has none.

    idle, between requests              `idle_timeout_s`, or until another connection needs the place
    a request's header arrives          `header_timeout_s`, 64 KiB (by h11)
    its body arrives                    see body.py
    the rest of a body nobody reads     LINGER_S, then cut: the answer was out before the request was in
    an answer waits for the client      `write_timeout_s` for each 16 KiB

A sweep asks each connection now and then whether its time is over. Cutting one off ends the request on it, as when the
client had left. A client that has left is noticed in every phase, also where it sent further requests ahead.
"""

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from benthic.server.config import ServerConfig
from benthic.server.errors import ApiError

LINGER_S = 5.0
"""A client has this long to see that its request was answered before it was sent."""
MIN_TAKEN_BYTES = 16 << 10
"""What a client must take of a waiting answer in `write_timeout_s`."""
MAX_AHEAD_BYTES = 64 << 10
"""Of requests sent ahead of an answer that is still on its way."""
_NO_HTTP = "what was sent is no HTTP/1.1 request, or its header is larger than 64 KiB"
_SPARE_CONNECTIONS = 64
"""Beyond `max_connections`, to say no on."""


class Connections(ServerState):
    """uvicorn's record of what is open, with the limits that each connection follows.

    Args:
        config: the limits.
        refused: called with the status of each answer that no route has given.
    """

    def __init__(self, config: ServerConfig, refused: Callable[[int], None]) -> None:
        super().__init__()
        self.limits = config
        self.refused = refused

    def sweep(self, now_s: float) -> None:
        """Ends every connection whose time is over."""
        for connection in self.guarded():
            connection.check_time(now_s)

    def make_room(self) -> bool:
        """Whether there is a place for one more; the one that has been idle longest may lose its own."""
        if len(self.connections) <= self.limits.max_connections:
            return True
        idle = [(connection.idle_since_s, connection) for connection in self.guarded() if connection.idle_since_s]
        if not idle:
            return False
        min(idle, key=lambda entry: entry[0])[1].cut()
        return True

    def guarded(self) -> "list[Connection]":
        """The open connections; a copy, for ending one changes the set."""
        return [connection for connection in self.connections if isinstance(connection, Connection)]


class _Waiting(NamedTuple):
    """Bytes that have been written since the client last took enough."""

    since_s: float
    taken_bytes: int


class Connection(H11Protocol):
    """See the module. Made by uvicorn, with a `Connections` for its state."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, Connections)
        self._state = server_state
        self._limits = server_state.limits
        self._sent: _CountingTransport | None = None
        self._waiting: _Waiting | None = None
        self._header_since_s: float | None = None
        self._linger_since_s: float | None = None
        self._is_refused = False
        self.idle_since_s: float | None = None
        """Since when no request is under way here; None: one is, or the connection is being closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes the connection, or says that there is no place for it."""
        self._sent = _CountingTransport(transport)
        super().connection_made(self._sent)
        if self._state.make_room():
            self._header_since_s = self.idle_since_s = self.loop.time()
        else:
            self._refuse()

    def data_received(self, data: bytes) -> None:
        """Takes bytes of a request."""
        if self._is_refused:
            return
        super().data_received(data)
        self._keep_listening()
        self._note_phase()

    def on_response_complete(self) -> None:
        """An answer is out; its request may still be on its way in."""
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._linger_since_s = self.loop.time()
        self._note_phase()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. Behind a whole request that is being answered it does no harm."""
        if self.cycle is not None and not self.cycle.response_complete:
            if not self.cycle.more_body:
                return
            if self.cycle.response_started:
                self.cut()
                return
        self._state.refused(400)
        self.transport.write(_raw_answer(ApiError(400, _NO_HTTP, code="invalid_http")))
        self.transport.close()

    def check_time(self, now_s: float) -> None:
        """Ends the connection if its time is over."""
        limits = self._limits
        if (
            self._is_unread(now_s)
            or _is_over(self._linger_since_s, LINGER_S, now_s)
            or _is_over(self._header_since_s, limits.header_timeout_s, now_s)
            or _is_over(self.idle_since_s, limits.idle_timeout_s, now_s)
        ):
            self.cut()

    def cut(self) -> None:
        """Ends the connection at once, whatever it is at."""
        self.idle_since_s = None
        self.transport.abort()

    def _is_unread(self, now_s: float) -> bool:
        """Whether the client leaves its answer lying."""
        assert self._sent is not None
        waiting_bytes = self._sent.get_write_buffer_size()
        taken_bytes = self._sent.written_bytes - waiting_bytes
        if not waiting_bytes:
            self._waiting = None
        elif self._waiting is None or taken_bytes - self._waiting.taken_bytes >= MIN_TAKEN_BYTES:
            self._waiting = _Waiting(now_s, taken_bytes)
        return self._waiting is not None and now_s - self._waiting.since_s > self._limits.write_timeout_s

    def _keep_listening(self) -> None:
        """Goes on reading behind a whole request: uvicorn would stop, and never hear that the client has left."""
        if self.flow.read_paused and self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
            if len(self.conn.trailing_data[0]) > MAX_AHEAD_BYTES:
                self.cut()
            elif not self.transport.is_closing():
                self.flow.resume_reading()

    def _note_phase(self) -> None:
        is_idle = self.conn.their_state is h11.IDLE and not self._is_refused
        begun = is_idle and bool(self.conn.trailing_data[0])
        if not is_idle:
            self.idle_since_s = None
        elif self.idle_since_s is None:
            self.idle_since_s = self.loop.time()
        if not begun:
            self._header_since_s = None
        elif self._header_since_s is None:
            self._header_since_s = self.loop.time()
        if self.conn.their_state is not h11.SEND_BODY:
            self._linger_since_s = None

    def _refuse(self) -> None:
        self._is_refused, self.idle_since_s, self._header_since_s = True, None, None
        self._state.refused(503)
        if len(self._state.connections) > self._limits.max_connections + _SPARE_CONNECTIONS:
            self.cut()
            return
        message = f"the server has {self._limits.max_connections} connections open and no place for more"
        error = ApiError(503, message, kind="server_error", code="too_many_connections", retry_after_s=1.0)
        self.transport.write(_raw_answer(error))
        self.transport.write_eof()
        self._linger_since_s = self.loop.time()


class _CountingTransport(asyncio.Transport):
    """A transport that knows how many bytes were written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._inner = transport
        self.written_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written_bytes += len(data)
        self._inner.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        return self._inner.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def close(self) -> None:
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()

    def write_eof(self) -> None:
        self._inner.write_eof()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()


def _is_over(since_s: float | None, limit_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s > limit_s


def _raw_answer(error: ApiError) -> bytes:
    """A whole HTTP answer, for where there is no request to answer."""
    body = json.dumps(error.body()).encode()
    headers = {
        **error.headers(),
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    }
    reason = {400: "Bad Request", 503: "Service Unavailable"}[error.status]
    lines = [f"HTTP/1.1 {error.status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
