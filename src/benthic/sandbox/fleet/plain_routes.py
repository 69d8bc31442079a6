"""The same calls for people and `curl`: a command as JSON, a file as a body.

Without `seq` a call takes the next free place of the trajectory, one after another; such a call is not safe to repeat.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse, StreamingResponse

from benthic.errors import RequestError
from benthic.sandbox.fleet.host_routes import field_of
from benthic.sandbox.fleet.once import Once
from benthic.sandbox.fleet.responses import Answering, body_of, json_of
from benthic.sandbox.host import Answer, Host, Request
from benthic.sandbox.records import Chunk, Command
from benthic.sandbox.wire import decode, encode, unpack_error, unpack_result

LINES = "application/x-ndjson"


class Places:
    """Gives calls that name no place the next one, one call of a sandbox at a time."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._locks: dict[str, asyncio.Lock] = {}

    async def call(self, sandbox_id: str, seq: int | None, request: Request) -> Answer:
        """The answer; errors that it carries are raised."""
        if seq is not None:
            return _sound(await self._host.call(sandbox_id, seq, request))
        lock = self._locks.setdefault(sandbox_id, asyncio.Lock())
        try:
            async with lock:
                place = (await self._host.info(sandbox_id)).next_seq
                return _sound(await self._host.call(sandbox_id, place, request))
        finally:
            if not lock.locked():
                self._locks.pop(sandbox_id, None)


def plain_router(host: Host, once: Once) -> APIRouter:
    """The routes of one host."""
    router = APIRouter()
    answering, places = Answering(once), Places(host)

    def answered(
        http: HttpRequest, sandbox_id: str, seq: int | None, request: Request, respond: Callable[[Answer], Response]
    ) -> Coroutine[Any, Any, Response]:
        return answering.held(http, lambda: places.call(sandbox_id, seq, request), respond, is_remembered=seq is None)

    @router.post("/sandboxes/{sandbox_id}/exec")
    async def execute(sandbox_id: str, http: HttpRequest) -> Response:
        fields = await json_of(http)
        seq = field_of(fields, "seq", int, default=None)
        request = exec_request({name: value for name, value in fields.items() if name != "seq"})
        if LINES in http.headers.get("accept", ""):
            place = (await host.info(sandbox_id)).next_seq if seq is None else seq
            return StreamingResponse(_lines(host.stream(sandbox_id, place, request)), media_type=LINES)
        return await answered(http, sandbox_id, seq, request, lambda answer: JSONResponse(plain_result(answer)))

    @router.get("/sandboxes/{sandbox_id}/files")
    async def read(sandbox_id: str, http: HttpRequest, path: str, seq: int | None = None) -> Response:
        request = Request(verb="read", arguments={"path": path})
        return await answered(
            http, sandbox_id, seq, request, lambda answer: Response(answer.data, media_type="application/octet-stream")
        )

    @router.put("/sandboxes/{sandbox_id}/files")
    async def write(sandbox_id: str, http: HttpRequest, path: str, seq: int | None = None) -> Response:
        request = Request(verb="write", arguments={"path": path}, data=await body_of(http))
        return await answered(http, sandbox_id, seq, request, lambda answer: JSONResponse({"seq": answer.seq}))

    return router


def exec_request(fields: dict[str, Any]) -> Request:
    """A command of a body: the fields of `Command`, with `stdin` as text and `env` as an object.

    Raises:
        RequestError: a field is wrong.
    """
    env = fields.get("env", {})
    stdin = fields.get("stdin", "")
    if not isinstance(env, dict) or not isinstance(stdin, str):
        raise RequestError("env must be an object of texts, and stdin a text", param="env")
    plain = {name: value for name, value in fields.items() if name not in ("env", "stdin")}
    command = decode(Command, plain | {"env": [[name, value] for name, value in env.items()]})
    return Request(verb="exec", arguments=encode(command), data=stdin.encode())


def plain_result(answer: Answer) -> dict[str, Any]:
    """A command's result with its output as text; what is not UTF-8 is replaced."""
    result = unpack_result(answer.value, answer.data)
    fields: dict[str, Any] = encode(result)
    texts = {"stdout": result.stdout.decode("utf-8", "replace"), "stderr": result.stderr.decode("utf-8", "replace")}
    return fields | texts | {"reason": result.reason.value, "seq": answer.seq, "is_replayed": answer.is_replayed}


async def _lines(items: AsyncIterator[Chunk | Answer]) -> AsyncIterator[bytes]:
    async for item in items:
        if isinstance(item, Chunk):
            line: dict[str, Any] = {"stream": item.stream, "text": item.data.decode("utf-8", "replace")}
        else:
            line = {"error": item.error, **item.value} if item.error else {"result": plain_result(item)}
        yield json.dumps(line).encode() + b"\n"


def _sound(answer: Answer) -> Answer:
    if answer.error is not None:
        raise unpack_error(answer)
    return answer
