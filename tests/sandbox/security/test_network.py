"""A sandbox without rules reaches nobody: not the host, not its network, not its kernel's other sockets."""

import socket
import time

import pytest

from tests.sandbox.security.kinds import Inside

UNREACHABLE = ("ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "EADDRNOTAVAIL", "EAFNOSUPPORT", "EACCES", "EPERM")


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["v4", "v6"])
def test_the_hosts_loopback_is_not_the_sandboxs(inside: Inside, family: socket.AddressFamily) -> None:
    address = "127.0.0.1" if family is socket.AF_INET else "::1"
    with socket.socket(family) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip(f"the host has no {address}")
        listener.listen()
        assert inside.errors("connect", address, listener.getsockname()[1])[0] in UNREACHABLE


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "8.8.8.8", "10.0.0.1", "192.168.0.1", "fd00:ec2::254", "ff02::1"]
)
def test_no_address_outside_is_reached(inside: Inside, address: str) -> None:
    began = time.monotonic()
    assert inside.errors("connect", address, 80)[0] in (*UNREACHABLE, "EINVAL")
    assert time.monotonic() - began < 5, "refused at once and not after a time"


def test_the_hosts_own_addresses_are_not_reached(inside: Inside) -> None:
    for address in {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, family=socket.AF_INET)}:
        with socket.socket() as listener:
            listener.bind(("0.0.0.0", 0))
            listener.listen()
            assert inside.errors("connect", address, listener.getsockname()[1])[0] in UNREACHABLE


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("raw", (2, 3, 1)),
        ("raw ipv6", (10, 3, 58)),
        ("packet", (17, 3, 0)),
        ("vsock", (40, 1, 0)),
        ("kernel crypto", (38, 5, 0)),
        ("bluetooth", (31, 3, 1)),
        ("can", (29, 3, 1)),
        ("tipc", (30, 1, 0)),
        ("xdp", (44, 3, 0)),
    ],
)
@pytest.mark.parametrize("user", [None, "root"])
def test_sockets_beside_the_usual_ones_are_refused(
    inside: Inside, name: str, arguments: tuple[int, int, int], user: str | None
) -> None:
    assert inside.errors("socket", *arguments, user=user)[0] in ("EPERM", "EACCES", "EAFNOSUPPORT", "EPROTONOSUPPORT")


def test_only_the_loopback_is_there(inside: Inside) -> None:
    names = [line.split(":")[0].strip() for line in inside.run("cat /proc/net/dev").text.splitlines()[2:]]
    assert set(names) <= {
        "lo",
        "sit0",
        "tunl0",
        "ip6tnl0",
        "gre0",
        "gretap0",
        "erspan0",
        "ip_vti0",
        "ip6_vti0",
        "ip6gre0",
    }
    assert inside.run("cat /proc/net/route").text.count("\n") <= 1, "no route"


def test_its_own_loopback_works(inside: Inside) -> None:
    assert inside.errors("connect", "127.0.0.1", 9)[0] == "ECONNREFUSED"


def test_without_rules_nobody_listens_on_it(inside: Inside) -> None:
    for address, port in (("127.0.0.1", 3128), ("127.64.0.1", 443), ("127.0.0.1", 53)):
        assert inside.errors("connect", address, port)[0] == "ECONNREFUSED"
