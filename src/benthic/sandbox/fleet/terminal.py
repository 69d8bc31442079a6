"""A terminal in a sandbox over a WebSocket, for browsers: bytes both ways, and its size as a line of JSON text.

    GET /sandboxes/{id}/terminal?seq=17[&rows=24&columns=80&command=bash]

The command is a job of the trajectory like any other. A socket that is cut and opened again with the same `seq` goes on
with the same terminal, its output from the start of what is kept.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable

from fastapi import APIRouter, WebSocket, WebSocketDisconnect

from benthic.errors import BenthicError, RequestError
from benthic.sandbox.host import Host, Request
from benthic.sandbox.records import Command
from benthic.sandbox.wire import decode, encode, unpack_error

FindHost = Callable[[WebSocket, str], Host]
_TRY_AGAIN, _REFUSED = 1013, 1008
_LAST_WORDS_S = 1.0


def terminal_router(find: FindHost) -> APIRouter:
    """The route; `find` gives the host of a sandbox to whoever may have it, and raises otherwise."""
    router = APIRouter()

    @router.websocket("/sandboxes/{sandbox_id}/terminal")
    async def terminal(socket: WebSocket, sandbox_id: str) -> None:
        try:
            host = find(socket, sandbox_id)
            query = socket.query_params
            numbers = {
                name: int(query.get(name, default)) for name, default in (("seq", -1), ("rows", 24), ("columns", 80))
            }
            seq = numbers["seq"] if numbers["seq"] >= 0 else (await host.info(sandbox_id)).next_seq
            await _spawn(host, sandbox_id, seq, query.get("command", "sh"), numbers["rows"], numbers["columns"])
        except (BenthicError, ValueError) as error:
            await socket.close(_REFUSED, str(error)[:120])
            return
        await socket.accept()
        await _carry(socket, host, sandbox_id, seq)

    return router


async def _spawn(host: Host, sandbox_id: str, seq: int, shell: str, rows: int, columns: int) -> None:
    command = encode(Command(shell=f"exec {shell}", timeout_s=None, env=(("TERM", "xterm-256color"),)))
    arguments = {**command, "terminal": [rows, columns], "keeps_input": True}
    answer = await host.call(sandbox_id, seq, Request(verb="spawn", arguments=arguments))
    if answer.error is not None:
        raise unpack_error(answer)


async def _carry(socket: WebSocket, host: Host, sandbox_id: str, seq: int) -> None:
    """Both directions until the command ends or the socket is closed; the command outlives the socket."""
    showing = asyncio.create_task(_show(socket, host, sandbox_id, seq))
    typing = asyncio.create_task(_type(socket, host, sandbox_id, seq))
    try:
        await asyncio.wait((showing, typing), return_when=asyncio.FIRST_COMPLETED)
        if not showing.done() and typing.exception() is not None:
            await asyncio.wait([showing], timeout=_LAST_WORDS_S)  # what was typed may have come after the end
        (showing if showing.done() else typing).result()
    except BenthicError as error:
        with contextlib.suppress(RuntimeError):
            await socket.close(_REFUSED if isinstance(error, RequestError) else _TRY_AGAIN, str(error)[:120])
    except (WebSocketDisconnect, RuntimeError):  # it has gone; starlette says so in two ways
        pass
    finally:
        for task in (showing, typing):
            task.cancel()
        await asyncio.gather(showing, typing, return_exceptions=True)


async def _show(socket: WebSocket, host: Host, sandbox_id: str, seq: int) -> None:
    async for chunk in host.output(sandbox_id, seq):
        await socket.send_bytes(chunk.data)
    result = await host.wait(sandbox_id, seq)
    await socket.send_text(json.dumps({"returncode": result.returncode, "reason": result.reason.value}))
    await socket.close()


async def _type(socket: WebSocket, host: Host, sandbox_id: str, seq: int) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            return
        if message.get("bytes"):
            await host.feed(sandbox_id, seq, message["bytes"])
        elif message.get("text"):
            rows, columns = _size_of(message["text"])
            await host.resize(sandbox_id, seq, rows, columns)


def _size_of(text: str) -> tuple[int, int]:
    try:
        fields = json.loads(text)
        return decode(int, fields["rows"], "rows"), decode(int, fields["columns"], "columns")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RequestError(f'a text message must be a size such as {{"rows": 24, "columns": 80}}: {error!r}') from None
