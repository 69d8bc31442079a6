"""The name service of a sandbox that may reach something: it answers allowed names with addresses of its own loopback.

    pypi.org -> 127.64.0.1, files.pythonhosted.org -> 127.64.0.2, ..

A connection there is taken by the host, which knows the name that it is meant for, resolves it itself and carries the
bytes. So programs that know nothing of a proxy work, nothing inside learns or chooses a real address, and a name that
is not allowed does not exist. Messages are those of RFC 1035.
"""

import struct
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from benthic.sandbox.network.rules import Allowlist, as_network, normal_name

FIRST_ADDRESS = IPv4Address("127.64.0.1")
MAX_NAMES = 1024
MAX_QUERY_BYTES = 512
TTL_S = 5
_NO_ERROR, _FORMAT_ERROR, _NO_SUCH_NAME, _NOT_IMPLEMENTED = 0, 1, 3, 4
_TYPE_A, _CLASS_IN = 1, 1
_HEADER = struct.Struct(">6H")


@dataclass(slots=True)
class NameTable:
    """Which address stands for which name. The names of the rules come first, so they have the same ones for ever."""

    allowlist: Allowlist
    addresses: dict[str, IPv4Address] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rule in self.allowlist.network.rules:
            name = normal_name(rule.host)
            if name is not None and as_network(rule.host) is None:
                self.address(name)

    def address(self, name: str) -> IPv4Address | None:
        """The address that stands for a name, given to it now if need be; None if it is not allowed."""
        if name not in self.addresses and self.allowlist.allows_name(name) and len(self.addresses) < MAX_NAMES:
            self.addresses[name] = FIRST_ADDRESS + len(self.addresses)
        return self.addresses.get(name)


def asked_name(query: bytes) -> str | None:
    """The name in a query of one question; None if it is not such a query."""
    try:
        return normal_name(_question(query)[0])
    except (ValueError, IndexError, struct.error):
        return None


def answer(query: bytes, table: NameTable) -> bytes | None:
    """The reply to a message, or None where silence is right."""
    if not _HEADER.size <= len(query) <= MAX_QUERY_BYTES or query[2] & 0x80:  # too short, too long, or itself a reply
        return None
    if query[2] >> 3 & 0xF:
        return _reply(query, b"", _NOT_IMPLEMENTED)
    try:
        text, type_, class_, end = _question(query)
    except (ValueError, IndexError, struct.error):
        return _reply(query, b"", _FORMAT_ERROR)
    question = query[_HEADER.size : end]
    name = normal_name(text)
    address = table.address(name) if name and class_ == _CLASS_IN else None
    if address is None:
        return _reply(query, question, _NO_SUCH_NAME)
    if type_ != _TYPE_A:
        return _reply(query, question, _NO_ERROR)
    # The name is a pointer to the question's, at byte 12.
    record = struct.pack(">3HIH", 0xC00C, _TYPE_A, _CLASS_IN, TTL_S, 4) + address.packed
    return _reply(query, question, _NO_ERROR, record)


def _question(query: bytes) -> tuple[str, int, int, int]:
    """Name, type and class of the one question, and where it ends."""
    if _HEADER.unpack_from(query)[2] != 1:
        raise ValueError("not one question")
    parts = []
    at = _HEADER.size
    while length := query[at]:
        if length > 63:  # a pointer: there is nothing before it to point to
            raise ValueError("a compressed name")
        parts.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    type_, class_ = struct.unpack_from(">2H", query, at + 1)
    return ".".join(parts), type_, class_, at + 5


def _reply(query: bytes, question: bytes, code: int, record: bytes = b"") -> bytes:
    id_, flags = struct.unpack_from(">2H", query)
    # A reply, authoritative, recursion as asked for and on offer.
    flags = 0x8480 | (flags & 0x0100) | code
    return _HEADER.pack(id_, flags, int(bool(question)), int(bool(record)), 0, 0) + question + record
