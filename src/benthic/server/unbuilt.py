"""Endpoints of OpenAI and Anthropic that this server does not have: each says so, and what to do instead.

They are 404, not 501: the official clients send a request again after any status of 500 or more.
"""

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from benthic.server.errors import ApiError
from benthic.server.refusals import UNBUILT, allowed_methods, nearest_route, no_route

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_NOT_STORED = "replies are not stored here; keep what you were sent, and send the whole conversation with each request"
_ONLY_TEXT = "this server generates text only"
_UNBUILT = {
    "/v1/responses/{rest:path}": _NOT_STORED,
    "/v1/conversations{rest:path}": _NOT_STORED,
    "/v1/chat/completions/{rest:path}": _NOT_STORED,
    "/v1/messages/batches{rest:path}": "there is no batch API; send the requests at once, they are computed together",
    "/v1/batches{rest:path}": "there is no batch API; send the requests at once, they are computed together",
    "/v1/embeddings": "this model makes no embeddings",
    "/v1/moderations": "there is no moderation model here",
    "/v1/audio/{rest:path}": _ONLY_TEXT,
    "/v1/images/{rest:path}": _ONLY_TEXT,
    "/v1/videos{rest:path}": _ONLY_TEXT,
    "/v1/realtime{rest:path}": _ONLY_TEXT,
    "/v1/files{rest:path}": "files are not stored here; send their text in the conversation",
    "/v1/uploads{rest:path}": "files are not stored here; send their text in the conversation",
    "/v1/vector_stores{rest:path}": "files are not stored here; send their text in the conversation",
    "/v1/containers{rest:path}": "this server runs no tools; offer functions and carry out their calls yourself",
    "/v1/assistants{rest:path}": "there are no assistants; use /v1/chat/completions or /v1/responses",
    "/v1/threads{rest:path}": "there are no assistants; use /v1/chat/completions or /v1/responses",
    "/v1/fine_tuning/{rest:path}": "training has no HTTP interface; see `benthic train`",
    "/v1/complete": "Anthropic's text completions are not offered; use /v1/messages or /v1/completions",
}


def add_unbuilt_routes(app: FastAPI) -> None:
    """Adds them; must come after all routes that exist, which they would otherwise hide."""
    for path, reason in _UNBUILT.items():
        app.add_api_route(path, _refusing(reason), methods=_METHODS, name=UNBUILT, include_in_schema=False)


def add_switched_off_routes(app: FastAPI, paths: Iterable[str], how: str) -> None:
    """Routes that this server would have if it were started otherwise: each says how."""
    for path in sorted(paths):
        app.add_api_route(path, _switched_off(how), methods=_METHODS, name=UNBUILT, include_in_schema=False)


def _refusing(reason: str) -> Any:
    async def refuse(request: Request) -> Response:
        if allowed_methods(request):  # a route that exists, asked with a method that it does not take
            raise HTTPException(405)
        if nearest_route(request):
            raise no_route(request)
        raise ApiError(404, f"{request.method} {request.url.path} is not supported: {reason}", code="not_supported")

    return refuse


def _switched_off(how: str) -> Any:
    async def refuse(request: Request) -> Response:
        raise no_route(request, how)

    return refuse
