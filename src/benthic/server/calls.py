"""What control routes have in common: a JSON body in, a call of the engine, an object out once it has been done."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from benthic.errors import EngineError
from benthic.server.body import read_object
from benthic.server.described import describe_control
from benthic.server.errors import ApiError
from benthic.server.fields import Fields
from benthic.server.schema_kinds import Schema
from benthic.server.service import Service

Act = Callable[[Service, Fields], Awaitable[dict[str, Any]]]


def add_control(
    app: FastAPI, service: Service, path: str, act: Act, *, required: tuple[str, ...] = (), **fields: Schema
) -> None:
    """Adds one control route; `fields` are what its body may hold, `required` what it must."""
    described = describe_control(fields, required)
    app.add_api_route(path, control_handler(service, act), methods=["POST"], openapi_extra=described)


def control_handler(service: Service, act: Act) -> Callable[[Request], Awaitable[Response]]:
    """A route that reads a JSON object (an empty body is an empty one), acts, and answers with an object."""

    async def handle(request: Request) -> Response:
        has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
        fields = Fields(await read_object(request, service.config, service.intake) if has_body else {})
        answer = await act(service, fields)
        return JSONResponse({"success": True, **answer})

    return handle


async def done(future: Future[str]) -> str:
    """The value of a call.

    Raises:
        ApiError: 503 when the engine could not carry it out.
        BenthicError: it would not, for a reason that the caller can mend.
    """
    try:
        return await asyncio.wrap_future(future)
    except EngineError as error:
        raise ApiError(503, str(error), kind="server_error", code="engine_unavailable", retry_after_s=5.0) from None
