"""Passes a request for one sandbox on to its host, unread, and the host's response back.

A host that does not answer now gives 503 and `benthic-retry`: the client, who knows that the same call twice is safe,
asks again, until the host is back or the watcher has given it up. Here nothing is tried twice.
"""

import contextlib
import re
from collections.abc import AsyncIterator, Mapping

import httpx
from fastapi import HTTPException, Response
from fastapi import Request as HttpRequest
from fastapi.responses import StreamingResponse

from benthic.sandbox.errors import HostUnreachable
from benthic.sandbox.fleet import headers as names
from benthic.sandbox.fleet.connection import HOLD_S
from benthic.sandbox.fleet.frames import CONTENT_TYPE
from benthic.sandbox.fleet.gateway import Gateway
from benthic.sandbox.fleet.hosts import HostEntry
from benthic.sandbox.fleet.responses import body_of, seconds_of
from benthic.sandbox.fleet.sandbox_rows import SandboxRow

_PATH = re.compile(
    r"/(exec|files|pause|resume|renew|snapshot|fork|branch|expose|log|checkpoint|incarnation|calls"
    r"|(calls|streams)/[0-9]{1,18}|jobs/[0-9]{1,18}/(output|wait|signal|input|resize))"
)
"""What may follow a sandbox's name. Nothing else is passed on: a path such as `/../OTHER/exec` would reach a sandbox
whose owner was never asked, with the fleet's own token."""
_PASSED_ON = (names.REQUEST_ID, names.AGAIN, "content-type", "accept")
_PASSED_BACK = (names.INCARNATION, names.RETRY, "retry-after", "content-type")


async def forward(
    gateway: Gateway, row: SandboxRow, rest: str, http: HttpRequest, body: bytes | None = None
) -> Response:
    """The host's response to a request about one sandbox.

    Args:
        gateway: knows the host.
        row: the sandbox.
        rest: of the path, behind the sandbox's name.
        http: the client's request.
        body: of the request, where it was read already.

    Raises:
        HostUnreachable: the host does not answer now.
        SandboxDied: it is no more.
        HTTPException: no host has such a path.
    """
    if not _PATH.fullmatch(rest):
        raise HTTPException(404)
    body = await body_of(http) if body is None else body
    hold_s = seconds_of(http.headers.get(names.HOLD))
    while True:
        row = gateway.sandboxes.get(row.id, None)
        host = gateway.open_host(row)
        response = await _send(host, row, rest, http, body)
        if response.headers.get("content-type", "").startswith(CONTENT_TYPE) and not _is_whole(response):
            return StreamingResponse(_pieces(host, response), response.status_code, _kept(response.headers))
        content = await _read(host, response)
        if response.status_code == 202 and hold_s is None:
            continue  # this client waits, whoever has to ask again
        return Response(content, response.status_code, _kept(response.headers))


async def _send(host: HostEntry, row: SandboxRow, rest: str, http: HttpRequest, body: bytes) -> httpx.Response:
    sent = {name: http.headers[name] for name in _PASSED_ON if name in http.headers} | {names.HOLD: str(HOLD_S)}
    query = f"?{http.url.query}" if http.url.query else ""
    path = f"/sandboxes/{row.id}{rest}{query}"
    try:
        async with host.asked():
            return await host.host.connection.open(http.method, path, body, sent)
    except httpx.TransportError as error:
        raise HostUnreachable(f"host {row.host} does not answer ({error!r}); ask again") from None


async def _read(host: HostEntry, response: httpx.Response) -> bytes:
    try:
        async with host.asked():
            return await response.aread()
    except httpx.TransportError as error:
        raise HostUnreachable(f"a host's answer was cut ({error!r}); ask again") from None
    finally:
        await response.aclose()


async def _pieces(host: HostEntry, response: httpx.Response) -> AsyncIterator[bytes]:
    """A stream as it comes; what is cut ends without its last frame, and so its client notices."""
    pieces = response.aiter_raw()
    try:
        with contextlib.suppress(httpx.TransportError, HostUnreachable):
            while True:
                async with host.asked():
                    piece = await anext(pieces, None)
                if piece is None:
                    return
                yield piece
    finally:
        await response.aclose()


def _is_whole(response: httpx.Response) -> bool:
    return "content-length" in response.headers


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _PASSED_BACK if name in headers}
