"""Which destinations a sandbox's rules allow: names by name, addresses by address, and no name to a private address.

A name's owner decides what it resolves to, so a name may never lead to an address that is not public (this host, its
neighbours, a cloud's metadata service), unless that address is listed itself. Names are only ever resolved on the host.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from benthic.sandbox.records import Network

Address = IPv4Address | IPv6Address
_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)*")
_NAT64 = IPv6Network("64:ff9b::/96")
_IPV4_BITS = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Allowlist:
    """The rules of one sandbox."""

    network: Network

    def allows_name(self, name: str, port: int | None = None) -> bool:
        """Whether a name (see `normal_name`) may be reached at a port, or at any if None."""
        return any(
            (name.endswith(rule.host.lower()) if rule.host.startswith(".") else name == normal_name(rule.host))
            for rule in self.network.rules
            if port in (None, rule.port) and as_network(rule.host) is None
        )

    def allows_address(self, address: Address, port: int) -> bool:
        """Whether an address is listed as such, alone or in a network."""
        networks = (as_network(rule.host) for rule in self.network.rules if rule.port == port)
        return any(network is not None and address in network for network in networks)

    def allows_resolved(self, address: Address, port: int) -> bool:
        """Whether an allowed name may lead to that address."""
        return is_public(address) or self.allows_address(address, port)

    def ports(self, name: str) -> list[int]:
        """Those at which a name may be reached, sorted."""
        return sorted({rule.port for rule in self.network.rules if self.allows_name(name, rule.port)})


def normal_name(name: str) -> str | None:
    """A host name in small letters and without the last dot; None if it is none (an address in some strange form)."""
    plain = name.lower().removesuffix(".")
    # A name whose last part is a number is read as an address by many resolvers: 127.1, 0x7f000001.
    last = plain.rpartition(".")[2]
    is_number = last.isdecimal() or last.startswith("0x")
    return plain if _NAME.fullmatch(plain) and not is_number else None


def as_address(host: str) -> Address | None:
    """The address that a text is, in its plain form alone."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def as_network(host: str) -> IPv4Network | IPv6Network | None:
    """The network that a rule's host is; an address is a network of one."""
    try:
        return ip_network(host, strict=False)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether an address belongs to the open internet, also by the IPv4 address that an IPv6 one may carry."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & _IPV4_BITS)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast and not address.is_reserved
