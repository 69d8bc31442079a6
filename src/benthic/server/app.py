"""The HTTP application: routes, the door that every request passes, and the answer to every exception."""

import hmac
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benthic import __version__
from benthic.errors import BenthicError, Cancelled
from benthic.server.access_log import AccessLog
from benthic.server.completions import completions
from benthic.server.control import CONTROL_PATHS, add_control_routes
from benthic.server.envelopes import error_body
from benthic.server.errors import ApiError, api_error
from benthic.server.metrics import CONTENT_TYPE
from benthic.server.protocol_routes import add_protocol_routes, body_example
from benthic.server.service import Service
from benthic.server.status_routes import READY_PATH, add_status_routes
from benthic.server.tokens import detokenize, tokenize, tokenizer_info

_OPEN_PATHS = frozenset({"/health", READY_PATH, "/metrics"})
_CLIENT_LEFT = 499
_RESTART_S = 5
"""About how long an engine takes to come back; a large model takes longer."""
_QUESTION = "What is 347 + 285?"

_log = logging.getLogger(__name__)


def create_app(service: Service) -> FastAPI:
    """The application that serves one model."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.channel.start()
        yield
        await service.channel.close()

    # No page at /docs: FastAPI's loads its scripts from the internet.
    app = FastAPI(title="Benthic", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None)
    _add_routes(app, service)
    add_protocol_routes(app, service)
    add_status_routes(app, service)
    if service.config.admin_key is not None:
        add_control_routes(app, service)
    for kind in (ApiError, BenthicError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer)
    app.add_middleware(Door, service=service)
    app.add_middleware(AccessLog)
    return app


class Door:
    """Checks the key, counts the answer, and turns away early what cannot be served."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._api_key = service.config.api_key
        self._admin_key = service.config.admin_key
        self._metrics = service.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counting_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "unknown")
                self._metrics.requests.labels(route, str(message["status"])).inc()
            await send(message)

        key = self._key_for(scope["path"])
        if key is not None and not _has_key(Request(scope), key):
            refusal = ApiError(
                401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'", code="invalid_api_key"
            )
            await _to_response(scope["path"], refusal)(scope, receive, counting_send)
            return
        await self._app(scope, receive, counting_send)

    def _key_for(self, path: str) -> str | None:
        if path in _OPEN_PATHS:
            return None
        return self._admin_key or self._api_key if path in CONTROL_PATHS else self._api_key


def _add_routes(app: FastAPI, service: Service) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health() -> Response:
        state = service.channel.state
        headers = {"retry-after": str(_RESTART_S)} if state in ("starting", "restarting") else None
        return JSONResponse({"status": state}, status_code=200 if state == "ok" else 503, headers=headers)

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    @app.head("/v1/models", include_in_schema=False)
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.model_card()]}

    @app.head("/v1/models/{model_id:path}", include_in_schema=False)
    @app.get("/v1/models/{model_id:path}")
    async def model(model_id: str) -> dict[str, Any]:
        service.check_model(model_id)
        return service.model_card()

    @app.post("/v1/completions", openapi_extra=body_example(model=service.name, prompt=_QUESTION, max_tokens=32))
    async def complete(request: Request) -> Response:
        return await completions(service, request)

    @app.head("/tokenizer_info", include_in_schema=False)
    @app.get("/tokenizer_info")
    async def info() -> Response:
        return tokenizer_info(service)

    @app.post("/tokenize", openapi_extra=body_example(prompt=_QUESTION))
    async def to_ids(request: Request) -> Response:
        return await tokenize(service, request)

    @app.post("/detokenize", openapi_extra=body_example(tokens=[0]))
    async def to_text(request: Request) -> Response:
        return await detokenize(service, request)


def _answer(request: Request, error: Exception) -> Response:
    path = request.url.path
    match error:
        case ClientDisconnect() | Cancelled():
            return Response(status_code=_CLIENT_LEFT)
        case HTTPException(status_code=404):
            message = f"no such route: {request.method} {path}; see /openapi.json"
            return _to_response(path, ApiError(404, message, code="unknown_url"))
        case HTTPException(status_code=405):
            allowed = _allowed_methods(request)
            message = f"{request.method} {path}: this route takes {allowed}"
            return _to_response(path, ApiError(405, message, code="method_not_allowed"), {"allow": allowed})
        case HTTPException():
            message = f"{request.method} {path}: {error.detail}"
            return _to_response(path, ApiError(error.status_code, message), dict(error.headers or {}))
    answer = api_error(error)
    if answer.status >= 500 and not isinstance(error, ApiError):
        _log.error("%s %s failed", request.method, path, exc_info=error)
    return _to_response(path, answer)


def _allowed_methods(request: Request) -> str:
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    return ", ".join(sorted({method for route in matching for method in getattr(route, "methods", None) or ()}))


def _to_response(path: str, error: ApiError, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(error_body(path, error), status_code=error.status, headers=error.headers() | (headers or {}))


def _has_key(request: Request, key: str) -> bool:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    offered = bearer if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
    return hmac.compare_digest(offered.encode(), key.encode())
