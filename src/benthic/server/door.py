"""The door that every request passes: it gets a name, its key is checked, and its answer is counted."""

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benthic.server.callers import Caller, is_key, owner_of, sent_key, sent_request_id
from benthic.server.config import ServerConfig
from benthic.server.control import CONTROL_PATHS
from benthic.server.envelopes import is_anthropic
from benthic.server.errors import ApiError
from benthic.server.playground_page import is_page_path
from benthic.server.refusals import error_response, refuse_request
from benthic.server.service import Service, new_id
from benthic.server.status_routes import READY_PATH

_OPEN_PATHS = frozenset({"/health", READY_PATH, "/metrics"})
_SHOWN_HEADERS = ("x-request-id", "request-id", "retry-after", "retry-after-ms")
"""What a script on another origin may read."""


def add_doors(app: FastAPI, service: Service) -> None:
    """Put the door in front of an application, and before it, where configured, what lets browsers in."""
    app.add_middleware(Door, service=service)
    if service.config.cors_origins:
        # In front of the door: a browser asks without a key whether it may ask, and must be able to read refusals.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=_SHOWN_HEADERS,
        )


class Door:
    """Names the request, checks its key, answers what a route raised, and counts the answer."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._config = service.config
        self._metrics = service.metrics
        self._intake = service.intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        caller = self._caller(request)
        request.state.caller = caller
        names = _id_headers(scope["path"], caller.request_id)
        is_started = False

        async def watched_send(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                route = getattr(scope.get("route"), "path", "unknown")
                self._metrics.requests.labels(route, str(message["status"])).inc()
                message = {**message, "headers": [*message.get("headers", ()), *names]}
            await send(message)

        try:
            if self._is_welcome(request):
                with self._intake.counted(receive) as counted:
                    await self._app(scope, counted, watched_send)
            else:
                refusal = _NO_ADMIN_KEY if scope["path"] in CONTROL_PATHS else _NO_KEY
                await error_response(request, refusal)(scope, receive, watched_send)
        except Exception as error:  # the border: inside, Starlette would answer around this door
            if is_started:
                raise
            await (await refuse_request(request, error))(scope, receive, watched_send)

    def _caller(self, request: Request) -> Caller:
        owner = owner_of(sent_key(request)) if self._config.salt_by_key else ""
        return Caller(request_id=sent_request_id(request) or new_id("req", "_"), owner=owner)

    def _is_welcome(self, request: Request) -> bool:
        keys = _keys_for(request.url.path, self._config)
        return not keys or is_key(sent_key(request), keys)


_NO_KEY = ApiError(
    401,
    "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
    code="invalid_api_key",
)
_NO_ADMIN_KEY = ApiError(
    401,
    "control routes want the server's admin key, not a client's; send it as 'Authorization: Bearer KEY' or "
    "'x-api-key: KEY'",
    code="invalid_api_key",
)


def _keys_for(path: str, config: ServerConfig) -> tuple[str, ...]:
    """The keys that open a path; none when it needs none."""
    if path in _OPEN_PATHS or is_page_path(path):
        return ()
    if path in CONTROL_PATHS and config.admin_key is not None:
        return (config.admin_key,)
    return config.all_api_keys


def _id_headers(path: str, request_id: str) -> list[tuple[bytes, bytes]]:
    """The request's name in the header that the client's protocol has for it."""
    names = [b"x-request-id", b"request-id"] if is_anthropic(path) else [b"x-request-id"]
    return [(name, request_id.encode("ascii")) for name in names]
