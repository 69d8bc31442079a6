"""Where a sandbox's programs connect to: its own loopback, with sockets that belong to the host.

A sandbox that shares the host's kernel has them in its network namespace; a virtual machine has init keep them
(`guest/loopback.py`).
"""

import asyncio
import socket
import subprocess
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from typing import Protocol

from benthic.sandbox.linux.namespaces import in_network_of

Serve = Callable[[StreamReader, StreamWriter], "asyncio.Task[None] | None"]
"""Takes a connection, which ends when the task does; None: there are too many, and it is closed."""
Answer = Callable[[bytes], Awaitable[bytes | None]]
MAX_QUESTIONS = 256
"""That are being answered at once; others are lost, as datagrams may be."""
_BACKLOG = 64
_FREE_BIND = {socket.AF_INET: (socket.IPPROTO_IP, 15), socket.AF_INET6: (socket.IPPROTO_IPV6, 78)}
"""IP_FREEBIND and IPV6_FREEBIND: an address that was given to the loopback a moment ago may not be ready yet."""


class Loopback(Protocol):
    """The loopback of one sandbox. Methods raise OSError: the sandbox has ended, or a socket is taken."""

    @property
    def max_connections(self) -> int:
        """Carried at once."""

    async def listen(self, host: str, port: int, serve: Serve) -> None:
        """Takes connections to an address, which becomes one of the loopback's own if it is another."""

    async def answer(self, host: str, port: int, answer: Answer) -> None:
        """Answers datagrams."""

    async def close(self) -> None:
        """Takes nothing more; who serves a connection ends it."""


class NamespaceLoopback:
    """See `Loopback`: of the network namespace of a process of this machine.

    When this process dies, its sockets go: connections break, and nothing stays open.
    """

    max_connections = 256

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._servers: list[asyncio.Server] = []
        self._services: list[asyncio.DatagramTransport] = []

    async def listen(self, host: str, port: int, serve: Serve) -> None:
        """See `Loopback`."""
        if not ip_address(host).is_loopback:
            await asyncio.to_thread(in_network_of, self._pid, partial(_own, host))
        bound = await asyncio.to_thread(in_network_of, self._pid, partial(_bind, socket.SOCK_STREAM, host, port))
        self._servers.append(await asyncio.start_server(serve, sock=bound, backlog=_BACKLOG))

    async def answer(self, host: str, port: int, answer: Answer) -> None:
        """See `Loopback`."""
        bound = await asyncio.to_thread(in_network_of, self._pid, partial(_bind, socket.SOCK_DGRAM, host, port))
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Service(answer), sock=bound)
        self._services.append(transport)

    async def close(self) -> None:
        """See `Loopback`."""
        for service in self._services:
            service.close()
        for server in self._servers:
            server.close()


class _Service(asyncio.DatagramProtocol):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._transport: asyncio.DatagramTransport | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(self._answering) < MAX_QUESTIONS:
            task = asyncio.ensure_future(self._reply(data, addr))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _reply(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = await self._answer(data)
        if reply is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(reply, addr)


def _bind(type_: int, host: str, port: int) -> socket.socket:
    """A socket of the network of the thread that runs this."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, type_ | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(*_FREE_BIND[family], 1)
        bound.bind((host, port))
        if type_ == socket.SOCK_STREAM:
            bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def _own(host: str) -> None:
    """Makes an address one of this network's loopback."""
    prefix = 128 if ":" in host else 32
    command = ["ip", "address", "replace", f"{host}/{prefix}", "dev", "lo"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{host} cannot be led to the loopback: {done.stderr.strip()}")
