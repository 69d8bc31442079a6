"""A sandbox's connections to the outside: listening sockets in its own network namespace that belong to the host.

The sandbox's network has a loopback and nothing else: no route leads anywhere, and no packet of it ever reaches the
host's network. On that loopback the host listens, for allowed names (names.py), for listed addresses, and as an HTTP
proxy at `PROXY`; what is accepted there is carried by the host, as far as the rules allow.

When this process dies, its sockets go: connections break, and nothing stays open. A process that adopts the sandbox
opens them again.
"""

import asyncio
import socket
import subprocess
from asyncio import StreamReader, StreamWriter
from functools import partial

from benthic.sandbox.linux.namespaces import in_network_of
from benthic.sandbox.network.dialer import Dialer, Refused
from benthic.sandbox.network.names import NameTable, answer, asked_name
from benthic.sandbox.network.proxy import serve_proxy
from benthic.sandbox.network.relay import close, relay
from benthic.sandbox.network.rules import Allowlist, as_network
from benthic.sandbox.records import Network

PROXY = ("127.0.0.1", 3128)
"""For what has no name and no single address: HTTP clients with `http_proxy` set."""
NAME_SERVICE = ("127.0.0.1", 53)
RESOLV_CONF = "nameserver 127.0.0.1\noptions attempts:1 timeout:5\n"
MAX_CONNECTIONS = 256
_BACKLOG = 64


class Egress:
    """The open sockets of one sandbox."""

    def __init__(self, pid: int, dialer: Dialer) -> None:
        self._pid, self._dialer = pid, dialer
        self._table = NameTable(dialer.allowlist)
        self._servers: list[asyncio.Server] = []
        self._heard: set[tuple[str, int]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._name_service: asyncio.DatagramTransport | None = None
        self._listening = asyncio.Lock()

    @classmethod
    async def open(cls, pid: int, network: Network, dialer: Dialer | None = None) -> "Egress":
        """Listens in the network of a process of the sandbox.

        Raises:
            OSError: that process has ended, or a socket is taken.
        """
        egress = cls(pid, dialer or Dialer(Allowlist(network)))
        try:
            await egress._listen(*PROXY, partial(egress._serve, None))
            for name in list(egress._table.addresses):
                await egress._listen_for(name)
            await egress._listen_for_addresses(network)
            loop = asyncio.get_running_loop()
            bound = await asyncio.to_thread(in_network_of, pid, partial(_bind, socket.SOCK_DGRAM, *NAME_SERVICE))
            egress._name_service, _ = await loop.create_datagram_endpoint(lambda: _NameService(egress), sock=bound)
        except BaseException:
            await egress.close()
            raise
        return egress

    async def close(self) -> None:
        """Closes every socket and connection."""
        if self._name_service is not None:
            self._name_service.close()
        for server in self._servers:
            server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def answer(self, query: bytes) -> bytes | None:
        """The name service's reply, once somebody listens at the address that it gives."""
        name = asked_name(query)
        if name is not None and self._table.address(name) is not None:
            await self._listen_for(name)
        return answer(query, self._table)

    async def _listen_for(self, name: str) -> None:
        address = self._table.address(name)
        for port in self._dialer.allowlist.ports(name):
            await self._listen(str(address), port, partial(self._serve, (name, port)))

    async def _listen_for_addresses(self, network: Network) -> None:
        """Single addresses become the loopback's own, so that a connection to one arrives here."""
        for rule in network.rules:
            listed = as_network(rule.host)
            if listed is not None and listed.num_addresses == 1 and not listed.is_loopback:
                host = str(listed.network_address)
                await asyncio.to_thread(in_network_of, self._pid, partial(_own, host))
                await self._listen(host, rule.port, partial(self._serve, (host, rule.port)))

    async def _listen(self, host: str, port: int, serve: "partial[asyncio.Task[None] | None]") -> None:
        async with self._listening:
            if (host, port) in self._heard:
                return
            bound = await asyncio.to_thread(in_network_of, self._pid, partial(_bind, socket.SOCK_STREAM, host, port))
            self._servers.append(await asyncio.start_server(serve, sock=bound, backlog=_BACKLOG))
            self._heard.add((host, port))

    def _serve(
        self, destination: tuple[str, int] | None, reader: StreamReader, writer: StreamWriter
    ) -> asyncio.Task[None] | None:
        if len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return None
        work = (
            serve_proxy(reader, writer, self._dialer)
            if destination is None
            else self._carry(destination, reader, writer)
        )
        task = asyncio.ensure_future(work)
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        return task

    async def _carry(self, destination: tuple[str, int], reader: StreamReader, writer: StreamWriter) -> None:
        try:
            upstream = await self._dialer.open(*destination)
        except Refused:
            await close(writer)
        else:
            await relay((reader, writer), upstream)


class _NameService(asyncio.DatagramProtocol):
    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._transport: asyncio.DatagramTransport | None = None
        self._answering: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if len(self._answering) < MAX_CONNECTIONS:
            task = asyncio.ensure_future(self._reply(data, addr))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _reply(self, data: bytes, addr: tuple[str, int]) -> None:
        reply = await self._egress.answer(data)
        if reply is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(reply, addr)


def _bind(type_: int, host: str, port: int) -> socket.socket:
    """A socket of the network of the thread that runs this."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, type_ | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
