"""An HTTP proxy for one sandbox: CONNECT for any protocol, and plain requests for http:// addresses.

One request a connection: a plain one is passed on with `Connection: close`, since the next could be for another host.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from urllib.parse import urlsplit

from benthic.errors import shown
from benthic.sandbox.network.dialer import Dialer, Refused
from benthic.sandbox.network.relay import close, relay

HEAD_LIMIT_S = 30.0
MAX_HEAD_BYTES = 1 << 16
"""Of a request's lines; asyncio's own limit of a stream is the same."""
_NOT_PASSED_ON = ("connection", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te", "upgrade")


async def serve_proxy(reader: StreamReader, writer: StreamWriter, dialer: Dialer) -> None:
    """Answers the one request of a client's connection, and closes it; never raises for what the client does."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), HEAD_LIMIT_S)
        host, port, first = _destination(head)
        upstream = await dialer.open(host, port)
    except Refused as refused:
        await _answer(writer, 403 if refused.is_denied else 502, str(refused))
    except (ValueError, asyncio.LimitOverrunError) as error:
        await _answer(writer, 400, str(error))
    except (asyncio.IncompleteReadError, TimeoutError, OSError):
        await close(writer)
    else:
        if first is None:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            upstream[1].write(first)
        await relay((reader, writer), upstream)


def _destination(head: bytes) -> tuple[str, int, bytes | None]:
    """Host, port, and what is sent there first; None for CONNECT, whose client begins.

    Raises:
        ValueError: it is no request to a proxy.
    """
    line, _, rest = head.decode("latin-1").partition("\r\n")
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise ValueError(f"{shown(line)} is no request line")
    method, target, version = parts
    if method == "CONNECT":
        host, colon, port = target.rpartition(":")
        if not colon or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"{shown(target)} is no host:port")
        return host.strip("[]"), int(port), None
    address = urlsplit(target)
    if address.scheme != "http" or not address.hostname:
        raise ValueError(f"{shown(target)} is no http:// address; for others ask by CONNECT")
    path = (address.path or "/") + (f"?{address.query}" if address.query else "")
    host = f"[{address.hostname}]" if ":" in address.hostname else address.hostname
    authority = host if address.port is None else f"{host}:{address.port}"
    kept = [
        line for line in rest.split("\r\n") if line and line.partition(":")[0].strip().lower() not in _NOT_PASSED_ON
    ]
    lines = [f"{method} {path} {version}", f"Host: {authority}", "Connection: close", *kept, "", ""]
    return address.hostname, address.port or 80, "\r\n".join(lines).encode("latin-1")


async def _answer(writer: StreamWriter, status: int, text: str) -> None:
    words = {400: "Bad Request", 403: "Forbidden", 502: "Bad Gateway"}
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status} {words[status]}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
    await close(writer)
