"""HTTP as a load generator needs it: one request, its answer's bytes as they come, on asyncio's own streams.

A general client library would do, but it is not among Benthic's dependencies, and its pools and retries would be
measured too. One connection a request; no redirects, no compression, no retries.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benthic.errors import BenchError, ConfigError

_LIMIT = 1 << 24
"""Bytes of one line at most; a line of an event stream holds a whole chunk of an answer."""


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int
    is_secure: bool
    path: str
    """In front of every route, without a slash at its end."""

    @classmethod
    def of(cls, url: str) -> "Address":
        """From a base URL such as http://127.0.0.1:8000.

        Raises:
            ConfigError: it is no http or https URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the server's URL is {url!r}; it must be like http://127.0.0.1:8000")
        is_secure = parts.scheme == "https"
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if is_secure else 80), is_secure, path)


async def get_json(address: Address, route: str, headers: dict[str, str]) -> Any:
    """The JSON object at a route.

    Raises:
        BenchError: the server does not answer with 200 and JSON.
    """
    body = b"".join([line async for line in _exchange(address, "GET", route, headers, None)])
    try:
        return json.loads(body)
    except ValueError as error:
        raise BenchError(f"GET {route} answered {body[:80]!r}; JSON was expected") from error


async def stream_events(address: Address, route: str, headers: dict[str, str], body: Any) -> AsyncIterator[str]:
    """The data of each server-sent event that answers a POST, as it arrives; comments are left out.

    Raises:
        BenchError: the server refuses, breaks off, or speaks something else.
    """
    async for line in _exchange(address, "POST", route, headers, json.dumps(body).encode()):
        if line.startswith(b"data:"):
            yield line[5:].strip().decode()


async def _exchange(
    address: Address, method: str, route: str, headers: dict[str, str], body: bytes | None
) -> AsyncIterator[bytes]:
    """The lines of an answer's body."""
    secure = ssl.create_default_context() if address.is_secure else None
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=secure, limit=_LIMIT)
    except OSError as error:
        raise BenchError(f"no server answers at {address.host}:{address.port} ({error}); start one first") from error
    try:
        writer.write(_head(address, method, route, headers, body) + (body or b""))
        await writer.drain()
        status, fields = await _read_head(reader)
        lines = _lines(_chunks(reader)) if fields.get("transfer-encoding") == "chunked" else _rest(reader, fields)
        if status != 200:
            text = b"".join([line async for line in lines]).decode(errors="replace")
            raise BenchError(f"{method} {route} was answered with {status}: {text[:300]}")
        async for line in lines:
            yield line
    except (OSError, asyncio.IncompleteReadError) as error:
        raise BenchError(f"{method} {route}: the connection broke off ({error or type(error).__name__})") from error
    finally:
        writer.close()


def _head(address: Address, method: str, route: str, headers: dict[str, str], body: bytes | None) -> bytes:
    fields = {"Host": f"{address.host}:{address.port}", "Connection": "close", **headers}
    if body is not None:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    lines = [f"{method} {address.path}{route} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    words = (await reader.readuntil(b"\r\n")).split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise BenchError(f"the server answers {b' '.join(words)[:80]!r}; HTTP was expected")
    fields = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip().lower()
    return int(words[1]), fields


async def _rest(reader: asyncio.StreamReader, fields: dict[str, str]) -> AsyncIterator[bytes]:
    length = fields.get("content-length")
    yield await (reader.read() if length is None else reader.readexactly(int(length)))


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines, wherever the chunks were cut."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
