"""From an exception to the response that a client gets, in the envelope of the protocol that it speaks."""

import logging

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match

from benthic.errors import Cancelled
from benthic.server.callers import caller_of
from benthic.server.envelopes import error_body
from benthic.server.errors import ApiError, api_error

UNBUILT = "unbuilt"
"""The name of routes that stand for what the server does not offer."""
_CLIENT_LEFT = 499

_log = logging.getLogger(__name__)


async def refuse_request(request: Request, error: Exception) -> Response:
    """The answer to whatever a route raised; what is not the client's doing is logged."""
    match error:
        case ClientDisconnect() | Cancelled():
            return Response(status_code=_CLIENT_LEFT)
        case HTTPException(status_code=404):
            return error_response(request, no_route(request))
        case HTTPException(status_code=405):
            allowed = allowed_methods(request)
            message = f"{request.method} {request.url.path}: this route takes {allowed}"
            return error_response(request, ApiError(405, message, code="method_not_allowed"), {"allow": allowed})
        case HTTPException():
            message = f"{request.method} {request.url.path}: {error.detail}"
            return error_response(request, ApiError(error.status_code, message), dict(error.headers or {}))
    answer = api_error(error)
    if answer.status >= 500 and not isinstance(error, ApiError):
        request_id = caller_of(request).request_id
        _log.error("%s %s failed (request %s)", request.method, request.url.path, request_id, exc_info=error)
    return error_response(request, answer)


def error_response(request: Request, error: ApiError, headers: dict[str, str] | None = None) -> JSONResponse:
    """One error as JSON with its headers."""
    body = error_body(request.url.path, error, caller_of(request).request_id)
    return JSONResponse(body, status_code=error.status, headers=error.headers() | (headers or {}))


def allowed_methods(request: Request) -> str:
    """The methods that the path of a request takes, as the header `allow` lists them; empty for no such path."""
    matching = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    real = [route for route in matching if route.name != UNBUILT]
    return ", ".join(sorted({method for route in real for method in getattr(route, "methods", None) or ()}))


def no_route(request: Request, hint: str = "") -> ApiError:
    """The 404 of a path that nothing answers, with the path that may have been meant."""
    path = request.url.path
    if not hint:
        hint = nearest_route(request) or f"there are {', '.join(_offered(request))}; see /openapi.json"
    return ApiError(404, f"no such route: {request.method} {path}; {hint}", code="unknown_url")


def nearest_route(request: Request) -> str:
    """What to say of a path that is nearly one that there is; empty of any other."""
    path = request.url.path
    if path.startswith("/v1/v1/"):
        return f"did you mean {path[3:]}? The base URL of an Anthropic client has no /v1 at its end"
    if path.endswith("/") and _matches(request, path.rstrip("/")):
        return f"did you mean {path.rstrip('/')}? No route ends in a slash"
    if _matches(request, "/v1" + path):
        return f"did you mean /v1{path}? The base URL of an OpenAI client ends in /v1"
    return ""


def _offered(request: Request) -> list[str]:
    """What clients may send to, without the routes of whoever runs the server."""
    paths = {getattr(route, "path", "") for route in request.app.routes if route.name != UNBUILT}
    return sorted(path.replace(":path}", "}") for path in paths if path.startswith("/v1/"))


def _matches(request: Request, path: str) -> bool:
    scope = {**request.scope, "path": path, "raw_path": path.encode()}
    return any(route.matches(scope)[0] is Match.FULL and route.name != UNBUILT for route in request.app.routes)
