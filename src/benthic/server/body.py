"""Reading a request body: bounded, JSON, an object, and nothing in it that a later layer could choke on."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request

from benthic.errors import RequestError
from benthic.server.config import ServerConfig
from benthic.server.errors import ApiError, too_slow
from benthic.server.intake import LONG, Intake
from benthic.text.fields import describe_json_error

MAX_DEPTH = 100
MIN_BYTES_PER_S = 16 << 10
"""A body that arrives more slowly than this may take `body_timeout_s` longer in all, and no more."""


async def read_object(request: Request, config: ServerConfig, intake: Intake) -> dict[str, Any]:
    """Read and parse one JSON object.

    Raises:
        ApiError: 413 when the body is larger than `config.max_body_bytes`, 408 when it stops or only trickles, 415 when
            it is compressed.
        RequestError: not UTF-8, not JSON, NaN or Infinity, too deep, lone surrogates, or not an object.
    """
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = f"content-encoding is {encoding!r}; it must be absent: send the body as it is, not compressed"
        raise ApiError(415, message, code="unsupported_content_encoding")
    raw = await _read_bounded(request, config.max_body_bytes, config.body_timeout_s)
    # Parsing megabytes takes a while, and every stream waits for the loop.
    return await intake.run(raw, parse_object, raw) if len(raw) > LONG else parse_object(raw)


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse bytes into one JSON object; see `read_object`."""
    try:
        body = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None
    except RecursionError:
        raise _too_deep() from None
    except RequestError:
        raise
    except json.JSONDecodeError as error:
        raise RequestError(
            f"the body is not JSON: {error.msg} at line {error.lineno} column {error.colno}; send one JSON object"
        ) from None
    except ValueError as error:
        raise RequestError(f"the body holds a number that cannot be read: {describe_json_error(error)}") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body is a JSON {_kind(body)}; it must be an object")
    _inspect(body)
    return body


async def _read_bounded(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(int(declared), max_bytes)
    chunks: list[bytes] = []
    size = 0
    stream = request.stream()
    began = time.monotonic()
    while True:
        left_s = began + timeout_s + size / MIN_BYTES_PER_S - time.monotonic()
        chunk = await _next_chunk(stream, timeout_s, min(timeout_s, left_s))
        if chunk is None:
            break
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(size, max_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


async def _next_chunk(stream: AsyncGenerator[bytes, None], timeout_s: float, left_s: float) -> bytes | None:
    try:
        async with asyncio.timeout(left_s):
            return await anext(stream, None)
    except TimeoutError:
        raise too_slow(timeout_s) from None


def _inspect(body: dict[str, Any]) -> None:
    """Refuse nesting beyond MAX_DEPTH, numbers beyond float64 and text that is no Unicode."""
    for name in body:  # first: refusals name them
        _check_unicode("a field name", name)
    level: list[tuple[str, Any]] = list(body.items())
    for _ in range(MAX_DEPTH):
        inner: list[tuple[str, Any]] = []
        for field, value in level:
            if isinstance(value, str):
                _check_unicode(field, value)
            elif isinstance(value, dict):
                for key in value:
                    _check_unicode(field, key)
                inner.extend((field, item) for item in value.values())
            elif isinstance(value, list):
                inner.extend((field, item) for item in value if not isinstance(item, bool))
            elif isinstance(value, float) and value in (float("inf"), float("-inf")):
                raise RequestError(f"{field} holds a number beyond 1.8e308", param=field)
            elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
                raise RequestError(f"{field} holds an integer beyond 64 bits", param=field)
        if not inner:
            return
        level = inner
    raise _too_deep()


def _check_unicode(field: str, value: str) -> None:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        raise RequestError(
            f"{field} holds the lone surrogate U+{code:04X} at character {error.start}; send whole characters",
            param=field if field.isidentifier() else None,
        ) from None


def _refuse_constant(name: str) -> None:
    raise RequestError(f"the body holds {name}, which is not JSON; send a finite number or leave the field out")


def _too_deep() -> RequestError:
    return RequestError(f"the body is nested too deeply; at most {MAX_DEPTH} levels are read")


def _too_large(size: int, max_bytes: int) -> ApiError:
    message = f"the request body ({size} bytes) must be at most {max_bytes} bytes"
    return ApiError(413, message, code="request_too_large")


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    return kinds[type(value)]
