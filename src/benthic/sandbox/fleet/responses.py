"""How an agent or a gateway answers: an error with its status, a slow request with 202, a stream with pings."""

import asyncio
import contextlib
import json
import logging
import math
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from fastapi import FastAPI, Response
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as HttpError

from benthic.errors import BenthicError, CapacityError, RequestError, SandboxError, shown
from benthic.sandbox.errors import HostUnreachable
from benthic.sandbox.fleet import headers as names
from benthic.sandbox.fleet.frames import CONTENT_TYPE, END, PING, Frame, answer_frame, item_frame, logged_frames
from benthic.sandbox.fleet.once import Once
from benthic.sandbox.host import Answer, Logged
from benthic.sandbox.records import Chunk
from benthic.sandbox.wire import pack_error

PING_S = 10.0
MAX_BODY_BYTES = 256 << 20
_log = logging.getLogger(__name__)


def error_response(error: BenthicError, status: int | None = None) -> JSONResponse:
    """The response that `error_of` of a connection reads back; what may pass is marked as worth another try."""
    packed = pack_error(error)
    body = {"error": packed.error, "message": str(error), "value": packed.value}
    body |= {"data": packed.data.hex()} if packed.data else {}
    may_pass = isinstance(error, CapacityError | HostUnreachable)
    extra = {names.RETRY: "1", "retry-after": "1"} if may_pass else {}
    return JSONResponse(body, status or names.status_of(error), extra)


def refuse_in_words(app: FastAPI) -> None:
    """Every refusal of an application has the same form, also of what no route takes."""

    def refused(_: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, BenthicError)
        return error_response(error)

    def unroutable(http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HttpError)
        takes = Headers(error.headers).get("allow")
        what = f"does not take {http.method}; it takes {takes}" if takes else "is no path of this server"
        problem = RequestError(f"{shown(http.url.path)} {what}; docs/sandbox-fleet.md lists all")
        return error_response(problem, error.status_code)

    def invalid(_: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        name = str(first["loc"][-1])
        return error_response(RequestError(f"{name}: {first['msg']}, and is {shown(first['input'])}", param=name))

    app.add_exception_handler(BenthicError, refused)
    app.add_exception_handler(HttpError, unroutable)
    app.add_exception_handler(RequestValidationError, invalid)


def answer_response(answer: Answer) -> Response:
    """One answer as a frame."""
    return Response(answer_frame(answer).to_bytes(), media_type=CONTENT_TYPE)


def page_response(page: Sequence[Logged]) -> Response:
    """A page of logged calls."""
    return Response(logged_frames(page), media_type=CONTENT_TYPE)


class Answering:
    """Runs what requests ask for, apart from their connections: a client that leaves stops nothing."""

    def __init__(self, once: Once) -> None:
        self._once = once

    async def held(
        self,
        http: HttpRequest,
        make: Callable[[], Coroutine[Any, Any, Any]],
        respond: Callable[[Any], Response] = JSONResponse,
        *,
        is_remembered: bool = True,
    ) -> Response:
        """The response to one request, or 202 when its client would rather ask again than wait longer."""
        hold_s = seconds_of(http.headers.get(names.HOLD))
        try:
            task = self._once.start(
                _name_of(http),
                make,
                again_for=http.headers.get(names.AGAIN),
                is_remembered=is_remembered,
            )
            done, _ = await asyncio.wait([task], timeout=hold_s)
            return respond(task.result()) if done else Response(status_code=202)
        except BenthicError as error:
            return error_response(error)
        except asyncio.CancelledError:
            return error_response(HostUnreachable("the agent is going down; ask again when it is back"))
        except Exception as error:  # noqa: BLE001 - the border: whoever asked gets an answer
            _log.exception("a request failed")
            return error_response(SandboxError(f"the host's agent failed: {error!r}"))

    def streamed(self, items: AsyncIterator[Chunk | Answer]) -> Response:
        """The response that carries a stream; its reader's pace is the stream's."""
        return StreamingResponse(_pieces(items), media_type=CONTENT_TYPE)


def _name_of(http: HttpRequest) -> str:
    """A request's name among all: what its client calls it means nothing for another client, or another path."""
    said = http.headers.get(names.REQUEST_ID)
    if not said:
        return uuid.uuid4().hex
    return "\n".join((http.headers.get("authorization", ""), http.method, http.url.path, said))


async def body_of(http: HttpRequest) -> bytes:
    """A request's body.

    Raises:
        RequestError: it is too large.
    """
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise RequestError(f"the body is larger than {MAX_BODY_BYTES} bytes; send it in parts")
    return bytes(body)


async def json_of(http: HttpRequest) -> dict[str, Any]:
    """A request's body as an object.

    Raises:
        RequestError: it is none.
    """
    return object_of(await body_of(http))


def object_of(body: bytes) -> dict[str, Any]:
    """A body as an object; an empty one has no fields.

    Raises:
        RequestError: it is none.
    """
    try:
        fields = json.loads(body) if body else {}
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body must be JSON, and is not: {error}") from None
    if not isinstance(fields, dict):
        raise RequestError(f"the body must be a JSON object, and is a {type(fields).__name__}")
    return fields


def seconds_of(text: str | None) -> float | None:
    """A header's seconds; what is no number counts as absent."""
    with contextlib.suppress(TypeError, ValueError):
        seconds = float(text or "")
        return seconds if math.isfinite(seconds) and seconds >= 0 else None
    return None


async def _pieces(items: AsyncIterator[Chunk | Answer]) -> AsyncIterator[bytes]:
    iterator = aiter(items)
    upcoming: asyncio.Task[Chunk | Answer | None] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.create_task(_next(iterator))
            done, _ = await asyncio.wait([upcoming], timeout=PING_S)
            if not done:
                yield PING.to_bytes()
                continue
            item = upcoming.result()
            upcoming = None
            yield (END if item is None else item_frame(item)).to_bytes()
            if item is None:
                return
    except BenthicError as error:
        yield _error_frame(error)
    except Exception as error:  # noqa: BLE001 - the border: whoever reads gets an answer
        _log.exception("a stream failed")
        yield _error_frame(SandboxError(f"the host's agent failed: {error!r}"))
    finally:
        if upcoming is not None:
            upcoming.cancel()
            await asyncio.gather(upcoming, return_exceptions=True)
        if hasattr(iterator, "aclose"):
            await iterator.aclose()


async def _next(iterator: AsyncIterator[Chunk | Answer]) -> Chunk | Answer | None:
    return await anext(iterator, None)


def _error_frame(error: BenthicError) -> bytes:
    frame = answer_frame(pack_error(error))
    return Frame("error", frame.fields, frame.data).to_bytes()
