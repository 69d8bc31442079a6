"""Rules, name service, proxy and dialer, on loopback; the egress into another network namespace where this is root."""

import asyncio
import os
import socket
import struct
import subprocess
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address

import pytest

from benthic.sandbox.linux.namespaces import in_network_of
from benthic.sandbox.network import Allowlist, Dialer, Egress, NamespaceLoopback, Refused, serve_proxy
from benthic.sandbox.network.names import NameTable, answer
from benthic.sandbox.network.rules import Address, is_public, normal_name
from benthic.sandbox.records import Network

RULES = Network.allow(
    "pypi.org:443", "plain.org:80", ".mirror.org:443", "10.1.2.3:5432", "10.9.0.0/16:80", "[fd00::1]:22"
)
PUBLIC = ip_address("93.184.216.34")


@pytest.mark.parametrize(
    ("name", "port", "is_allowed"),
    [
        ("pypi.org", 443, True),
        ("pypi.org", 80, False),
        ("evil-pypi.org", 443, False),
        ("pypi.org.evil.org", 443, False),
        ("a.b.mirror.org", 443, True),
        ("mirror.org", 443, False),
        ("evilmirror.org", 443, False),
    ],
)
def test_a_name_is_allowed_whole_and_at_its_port(name: str, port: int, is_allowed: bool) -> None:
    assert Allowlist(RULES).allows_name(name, port) is is_allowed


@pytest.mark.parametrize(
    ("address", "port", "is_allowed"),
    [("10.1.2.3", 5432, True), ("10.1.2.4", 5432, False), ("10.9.255.1", 80, True), ("fd00::1", 22, True)],
)
def test_an_address_is_allowed_alone_or_in_its_network(address: str, port: int, is_allowed: bool) -> None:
    assert Allowlist(RULES).allows_address(ip_address(address), port) is is_allowed


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ],
)
def test_private_and_metadata_addresses_are_not_public_in_any_form(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_addresses_of_the_open_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    "text", ["127.1", "2130706433", "0x7f.0x1", "0x7f000001", "", ".", "a..b", "a b", "a/b", "a" * 300]
)
def test_an_address_in_a_strange_form_is_no_name(text: str) -> None:
    assert normal_name(text) is None


def test_a_name_is_compared_in_small_letters_without_its_last_dot() -> None:
    assert normal_name("PyPI.org.") == "pypi.org"


def query(name: str, type_: int = 1, id_: int = 7) -> bytes:
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack(">6H", id_, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", type_, 1)


def code(reply: bytes | None) -> int:
    assert reply is not None
    return reply[3] & 0xF


def test_the_name_service_gives_an_allowed_name_an_address_of_the_loopback() -> None:
    table = NameTable(Allowlist(RULES))
    reply = answer(query("PyPI.org"), table)
    assert reply is not None
    assert reply[:2] == b"\0\7"
    assert code(reply) == 0
    assert reply[-4:] == table.addresses["pypi.org"].packed
    assert table.addresses["pypi.org"].is_loopback


def test_each_name_has_an_address_of_its_own_and_keeps_it() -> None:
    table = NameTable(Allowlist(RULES))
    replies = [answer(query(name), table) for name in ("pypi.org", "a.mirror.org", "b.mirror.org", "pypi.org")]
    addresses = [reply[-4:] for reply in replies if reply is not None]
    assert len(set(addresses)) == 3
    assert addresses[0] == addresses[3]


def test_names_that_are_not_allowed_do_not_exist_and_others_have_no_second_kind_of_address() -> None:
    table = NameTable(Allowlist(RULES))
    assert code(answer(query("evil.org"), table)) == 3
    assert code(answer(query("pypi.org", type_=28), table)) == 0
    assert len(answer(query("pypi.org", type_=28), table) or b"") == len(query("pypi.org"))


@pytest.mark.parametrize(
    "message",
    [b"", b"\0" * 11, b"\0" * 600, query("pypi.org")[:-3], b"\0\7\1\0\0\1" + bytes(6) + b"\xc0\x0c\0\1\0\1"],
    ids=["empty", "short", "long", "cut", "pointer"],
)
def test_broken_queries_get_an_error_or_silence(message: bytes) -> None:
    reply = answer(message, NameTable(Allowlist(RULES)))
    assert reply is None or code(reply) == 1


def test_cut_and_changed_queries_never_raise() -> None:
    table = NameTable(Allowlist(RULES))
    whole = query("a.mirror.org")
    for at in range(len(whole)):
        answer(whole[:at], table)
        answer(whole[:at] + b"\xff" + whole[at + 1 :], table)


def test_wildcard_names_are_bounded() -> None:
    table = NameTable(Allowlist(RULES))
    for number in range(3000):
        answer(query(f"n{number}.mirror.org"), table)
    assert len(table.addresses) <= 1024


async def no_connection(address: Address, port: int) -> tuple[StreamReader, StreamWriter]:
    raise AssertionError(f"connected to {address}:{port}")


def dialer_to(*addresses: str, network: Network = RULES) -> Dialer:
    async def resolve(name: str, port: int) -> list[Address]:
        return [ip_address(address) for address in addresses]

    return Dialer(Allowlist(network), resolve=resolve, connect=no_connection)


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.1.2.3", "::ffff:10.0.0.1"])
def test_an_allowed_name_that_leads_to_a_private_address_is_refused(address: str) -> None:
    with pytest.raises(Refused, match="not public") as caught:
        asyncio.run(dialer_to(address).open("pypi.org", 443))
    assert caught.value.is_denied


@pytest.mark.parametrize(
    "host", ["evil.org", "127.0.0.1", "169.254.169.254", "127.1", "::1", "[::1]", "pypi.org\0.evil.org"]
)
def test_destinations_that_are_not_listed_are_refused_without_a_look_up(host: str) -> None:
    async def resolve(name: str, port: int) -> list[Address]:
        raise AssertionError(name)

    with pytest.raises(Refused, match="not on this sandbox's list"):
        asyncio.run(Dialer(Allowlist(RULES), resolve=resolve, connect=no_connection).open(host, 443))


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    writer.write(b"echo " + await reader.read(1000))
    writer.close()


async def through_proxy(request: bytes, network: Network) -> bytes:
    """What a client of the proxy gets, whose every allowed destination is an echo on loopback."""
    upstream = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = upstream.sockets[0].getsockname()[1]

    async def resolve(name: str, asked: int) -> list[Address]:
        return [PUBLIC]

    async def connect(address: Address, asked: int) -> tuple[StreamReader, StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port)

    dialer = Dialer(Allowlist(network), resolve=resolve, connect=connect)
    async with upstream:
        proxy = await asyncio.start_server(lambda r, w: serve_proxy(r, w, dialer), "127.0.0.1", 0)
        async with proxy:
            reader, writer = await asyncio.open_connection(*proxy.sockets[0].getsockname()[:2])
            writer.write(request)
            return await asyncio.wait_for(reader.read(), 10)


def test_the_proxy_tunnels_to_allowed_destinations() -> None:
    reply = asyncio.run(through_proxy(b"CONNECT pypi.org:443 HTTP/1.1\r\nHost: x\r\n\r\nhello", RULES))
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert reply.endswith(b"echo hello")


def test_the_proxy_passes_a_plain_request_on_for_the_host_of_its_address_alone() -> None:
    fields = b"Host: evil.org\r\nProxy-Authorization: x\r\nConnection: keep-alive\r\nA: b\r\n\r\n"
    request = b"GET http://plain.org/a?b=c HTTP/1.1\r\n" + fields
    reply = asyncio.run(through_proxy(request, RULES))
    assert reply == b"echo GET /a?b=c HTTP/1.1\r\nHost: plain.org\r\nConnection: close\r\nA: b\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"CONNECT evil.org:443 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n", 403),
        (b"CONNECT pypi.org:22 HTTP/1.1\r\n\r\n", 403),
        (b"GET http://evil.org/ HTTP/1.1\r\nHost: plain.org\r\n\r\n", 403),
        (b"GET https://pypi.org/ HTTP/1.1\r\n\r\n", 400),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT pypi.org HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT pypi.org:99999 HTTP/1.1\r\n\r\n", 400),
        (b"GET http://[::1/ HTTP/1.1\r\n\r\n", 400),
        (b"\xff\xfe\r\n\r\n", 400),
        (b"A" * 70_000, 400),
    ],
)
def test_the_proxy_refuses_what_is_not_allowed_or_no_request(request_: bytes, status: int) -> None:
    reply = asyncio.run(through_proxy(request_, RULES))
    assert reply.startswith(f"HTTP/1.1 {status} ".encode())


@pytest.fixture
def sandbox() -> Iterator[int]:
    """The pid of a process in a network namespace of its own, with a loopback."""
    command = ["unshare", "--net", "sh", "-c", "ip link set lo up; echo up; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield process.pid


def ask_inside(pid: int, host: str, port: int) -> bytes:
    """What somebody inside gets from there."""

    def connect() -> socket.socket:
        return socket.create_connection((host, port), timeout=5)

    with in_network_of(pid, connect) as inside:
        inside.settimeout(5)
        inside.sendall(b"hello")
        inside.shutdown(socket.SHUT_WR)
        return inside.recv(1000)


def look_up_inside(pid: int, name: str) -> bytes:
    def ask() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
            asker.settimeout(5)
            asker.sendto(query(name), ("127.0.0.1", 53))
            return asker.recv(1000)

    return in_network_of(pid, ask)


@pytest.mark.skipif(os.geteuid() != 0, reason="entering a network namespace needs root")
def test_programs_inside_reach_allowed_names_and_addresses_and_nothing_else(sandbox: int) -> None:
    reached: list[tuple[str, int]] = []

    async def use() -> None:
        upstream = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = upstream.sockets[0].getsockname()[1]

        async def resolve(name: str, asked: int) -> list[Address]:
            return [PUBLIC]

        async def connect(address: Address, asked: int) -> tuple[StreamReader, StreamWriter]:
            reached.append((str(address), asked))
            return await asyncio.open_connection("127.0.0.1", port)

        egress = await Egress.open(
            NamespaceLoopback(sandbox), RULES, Dialer(Allowlist(RULES), resolve=resolve, connect=connect)
        )
        inside = partial(asyncio.to_thread, ask_inside, sandbox)
        try:
            for name in ("pypi.org", "deep.mirror.org"):
                reply = await asyncio.to_thread(look_up_inside, sandbox, name)
                assert await inside(socket.inet_ntoa(reply[-4:]), 443) == b"echo hello"
            assert await inside("10.1.2.3", 5432) == b"echo hello"
            assert await inside("fd00::1", 22) == b"echo hello"
            assert code(await asyncio.to_thread(look_up_inside, sandbox, "evil.org")) == 3
            for host, other in (("127.0.0.1", port), ("10.1.2.4", 5432), ("169.254.169.254", 80), ("127.64.0.1", 80)):
                with pytest.raises(OSError):
                    await inside(host, other)
        finally:
            await egress.close()
            upstream.close()
        with pytest.raises(OSError):
            await inside("10.1.2.3", 5432)

    asyncio.run(use())
    assert reached == [(str(PUBLIC), 443), (str(PUBLIC), 443), ("10.1.2.3", 5432), ("fd00::1", 22)]
