"""Server-sent events, and the two ways in which a client's leaving ends its work.

Every stream ends in exactly one of: the last frames and `[DONE]`, or one error object. A silent stream sends KEEP_ALIVE
now and then, a comment that clients ignore and proxies count as life.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from benthic.errors import Cancelled
from benthic.server.callers import caller_of
from benthic.server.errors import ApiError, api_error

DONE = "data: [DONE]\n\n"
KEEP_ALIVE = ": keep-alive\n\n"

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def to_frame(value: Any) -> str:
    """One data frame; a NaN or infinity in the value is a defect and raises."""
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'), allow_nan=False)}\n\n"


class EventStream(StreamingResponse):
    """A stream of frames.

    Args:
        frames: complete frames, the closing one included.
        fail: the frames that end the stream when `frames` raises.
        close: called exactly when the response ends, however it ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncIterator[str],
        *,
        fail: Callable[[ApiError], str],
        close: Callable[[], None],
    ) -> None:
        headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(self._with_failure(frames, fail), headers=headers)
        self._close = close
        self._request_id = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._request_id = caller_of(Request(scope)).request_id
        try:
            await super().__call__(scope, receive, send)
        finally:
            # Not a coroutine: the task may already be cancelled, and then no await would run.
            self._close()

    async def _with_failure(self, frames: AsyncIterator[str], fail: Callable[[ApiError], str]) -> AsyncIterator[str]:
        try:
            async for frame in frames:
                yield frame
        except Exception as error:  # noqa: BLE001  the status line is gone: the error must travel in the stream
            if not isinstance(error, ApiError):
                _log.error("a stream failed (request %s)", self._request_id, exc_info=error)
            yield fail(api_error(error))


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """Run `work`, but cancel it when the client goes away first.

    Raises:
        Cancelled: the client left; nobody will read an answer.
    """
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Cancelled("the client closed the connection before the answer was ready")
        return await task
    finally:
        task.cancel()
        leaving.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
