"""One line in the log for each HTTP request, when its answer has ended: who asked what, how it ended, tokens and times.

Never what was said: no bodies, no prompts, no answers. Outermost of all, so that a request which the door turns away
has its line as well. Probes have a line when they go otherwise than the last time, and files of the playground when
they go wrong, or a log would hold little else.
"""

import logging
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benthic.server.playground_page import is_page_path
from benthic.server.tally import Tally
from benthic.telemetry import REQUESTS, figures

_ENTRY = "benthic.access"
_PROBES = frozenset({"/health", "/ready", "/metrics"})
_CLIENT_LEFT = 499
_LONGEST_PATH = 200

_log = logging.getLogger(REQUESTS)


class AccessEntry:
    """What is known of one request so far."""

    def __init__(self) -> None:
        self.arrived_at = time.monotonic()
        self.tally: Tally | None = None
        """Set once sequences are opened for it."""
        self.status: int | None = None
        self.request_id: str | None = None
        self.is_complete = False

    def take(self, message: Message) -> None:
        """A message of the answer, on its way out."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.request_id = _header(message.get("headers", ()), b"x-request-id")
        elif message["type"] == "http.response.body":
            self.is_complete = not message.get("more_body", False)

    def write(self, scope: Scope, probes: dict[str, int]) -> None:
        """Logs the line; `probes` remembers how each probe went last."""
        route = getattr(scope.get("route"), "path", None)
        # An answer that nobody was there to take in full ends like one that never began.
        status = self.status if self.status is not None and self.is_complete else _CLIENT_LEFT
        is_dull = is_page_path(scope["path"]) and status < 400
        if route in _PROBES:
            is_dull = probes.get(route, 200) == status
            probes[route] = status
        client = scope.get("client")
        extra = figures(
            id=self.request_id,
            method=scope["method"],
            route=route or scope["path"][:_LONGEST_PATH],
            status=status,
            client=client[0] if client else None,
            **({} if self.tally is None else self.tally.figures()),
            duration_s=round(time.monotonic() - self.arrived_at, 6),
        )
        _log.log(logging.DEBUG if is_dull else logging.INFO, "request", extra=extra)


class AccessLog:
    """The middleware that makes an entry for each request and writes it in the end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._probes: dict[str, int] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        entry = scope[_ENTRY] = AccessEntry()

        async def watching_send(message: Message) -> None:
            await send(message)
            entry.take(message)

        try:
            await self._app(scope, receive, watching_send)
        finally:
            entry.write(scope, self._probes)


def arrival_of(scope: Scope) -> float | None:
    """When a request came, on the monotonic clock; None where no entry was made for it."""
    entry = scope.get(_ENTRY)
    return entry.arrived_at if isinstance(entry, AccessEntry) else None


def note_tally(scope: Scope, tally: Tally) -> None:
    """Lets the request's line say what its sequences cost."""
    entry = scope.get(_ENTRY)
    if isinstance(entry, AccessEntry):
        entry.tally = tally


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key.lower() == name), None)
