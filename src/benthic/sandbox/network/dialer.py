"""Opens a connection for a sandbox, if its rules allow the destination.

A name is resolved here, once, and the connection goes to an address that was checked: no second look-up, whose answer
might differ, comes in between.
"""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import ip_address

from benthic.errors import shown
from benthic.sandbox.network.rules import Address, Allowlist, as_address, normal_name

CONNECT_LIMIT_S = 10.0

Resolve = Callable[[str, int], Awaitable[list[Address]]]
Connect = Callable[[Address, int], Awaitable[tuple[StreamReader, StreamWriter]]]


class Refused(Exception):
    """A destination is not allowed, or cannot be reached; the text may be shown to the sandbox."""

    def __init__(self, message: str, *, is_denied: bool) -> None:
        super().__init__(message)
        self.is_denied = is_denied
        """By the rules, and not by the world."""


async def resolve(name: str, port: int) -> list[Address]:
    """The addresses of a name, by this host's resolver, each once and in its order."""
    found = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(ip_address(str(address[0]).partition("%")[0]) for *_, address in found))


async def connect(address: Address, port: int) -> tuple[StreamReader, StreamWriter]:
    """A TCP connection from this host."""
    return await asyncio.open_connection(str(address), port)


@dataclass(frozen=True, slots=True)
class Dialer:
    """Connections of one sandbox. `resolve` and `connect` are the host's own unless others are given."""

    allowlist: Allowlist
    resolve: Resolve = resolve
    connect: Connect = connect

    async def open(self, host: str, port: int) -> tuple[StreamReader, StreamWriter]:
        """A connection to a name or an address.

        Raises:
            Refused: not allowed, or nobody answers there.
        """
        for address in await self._allowed(host, port):
            try:
                return await asyncio.wait_for(self.connect(address, port), CONNECT_LIMIT_S)
            except (OSError, TimeoutError):
                continue  # the name's next address
        raise Refused(f"{host}:{port} does not answer", is_denied=False)

    async def _allowed(self, host: str, port: int) -> list[Address]:
        """Where the connection may go, checked."""
        if (address := as_address(host)) is not None:
            if not self.allowlist.allows_address(address, port):
                raise Refused(f"{host}:{port} is not on this sandbox's list", is_denied=True)
            return [address]
        name = normal_name(host)
        if name is None or not self.allowlist.allows_name(name, port):
            raise Refused(f"{shown(host)}:{port} is not on this sandbox's list", is_denied=True)
        try:
            addresses = await asyncio.wait_for(self.resolve(name, port), CONNECT_LIMIT_S)
        except (OSError, UnicodeError, TimeoutError):
            raise Refused(f"the name {name} does not resolve", is_denied=False) from None
        allowed = [address for address in addresses if self.allowlist.allows_resolved(address, port)]
        if addresses and not allowed:
            raise Refused(f"the name {name} leads to an address that is not public", is_denied=True)
        return allowed
