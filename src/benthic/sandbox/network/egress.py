"""A sandbox's connections to the outside: sockets of its own loopback that belong to the host.

The sandbox's network has a loopback and nothing else: no route leads anywhere, and no packet of it ever reaches the
host's network. On that loopback the host listens (`loopback.py`), for allowed names (names.py), for listed addresses,
and as an HTTP proxy at `PROXY`; what is accepted there is carried by the host, as far as the rules allow.

They last as long as this process. A process that adopts the sandbox opens them again.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from functools import partial

from benthic.sandbox.network.dialer import Dialer, Refused
from benthic.sandbox.network.loopback import Loopback
from benthic.sandbox.network.names import NameTable, answer, asked_name
from benthic.sandbox.network.proxy import serve_proxy
from benthic.sandbox.network.relay import close, relay
from benthic.sandbox.network.rules import Allowlist, as_network
from benthic.sandbox.records import Network

PROXY = ("127.0.0.1", 3128)
"""For what has no name and no single address: HTTP clients with `http_proxy` set."""
NAME_SERVICE = ("127.0.0.1", 53)
RESOLV_CONF = "nameserver 127.0.0.1\noptions attempts:1 timeout:5\n"


class Egress:
    """The open sockets of one sandbox."""

    def __init__(self, loopback: Loopback, dialer: Dialer) -> None:
        self._loopback, self._dialer = loopback, dialer
        self._table = NameTable(dialer.allowlist)
        self._heard: set[tuple[str, int]] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._listening = asyncio.Lock()

    @classmethod
    async def open(cls, loopback: Loopback, network: Network, dialer: Dialer | None = None) -> "Egress":
        """Listens on the loopback of a sandbox.

        Raises:
            OSError: the sandbox has ended, or a socket is taken.
        """
        egress = cls(loopback, dialer or Dialer(Allowlist(network)))
        try:
            await egress._listen(*PROXY, partial(egress._serve, None))
            for name in list(egress._table.addresses):
                await egress._listen_for(name)
            await egress._listen_for_addresses(network)
            await loopback.answer(*NAME_SERVICE, egress.answer)
        except BaseException:
            await egress.close()
            raise
        return egress

    async def close(self) -> None:
        """Closes every socket and connection."""
        await self._loopback.close()
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
                await self._listen(host, rule.port, partial(self._serve, (host, rule.port)))

    async def _listen(self, host: str, port: int, serve: "partial[asyncio.Task[None] | None]") -> None:
        async with self._listening:
            if (host, port) not in self._heard:
                await self._loopback.listen(host, port, serve)
                self._heard.add((host, port))

    def _serve(
        self, destination: tuple[str, int] | None, reader: StreamReader, writer: StreamWriter
    ) -> asyncio.Task[None] | None:
        if len(self._connections) >= self._loopback.max_connections:
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
