"""A sandbox with rules reaches what they name, by the host alone, and nothing else: on every kind that has rules."""

import asyncio
import errno
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benthic.sandbox import CommandTimeout, LocalHost, Network, Result, Sandbox, SandboxSpec
from benthic.sandbox.images import Store
from tests.sandbox.security.kinds import DRIVERS, LIMITS, compile_hostile, require

KINDS = ["crun", pytest.param("runc", marks=pytest.mark.nightly), "microvm"]
KINDS += [pytest.param(kind, marks=pytest.mark.nightly) for kind in ("docker", "vm")]
NAME = socket.gethostname()
"""A name that this host resolves, and that a sandbox does not know by itself."""
PROXY = "http_proxy=http://127.0.0.1:3128"
UNREACHABLE = ("ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED")
BODY = bytes(range(256)) * 4096


@dataclass
class Allowed:
    """A sandbox whose list has one server's address, and names; and that server beside one that is not on it."""

    kind: str
    host: LocalHost
    box: Sandbox
    runner: asyncio.Runner
    port: int
    """On 127.0.0.1, listed."""
    other: int
    """On 127.0.0.1 too, where a listed name leads; not listed itself."""
    requests: list[str]

    def run(self, shell: str, timeout_s: float = 30.0) -> Result:
        return self.runner.run(self.box.exec(shell, timeout_s=timeout_s))

    def ask_proxy(self, request: str) -> str:
        """What the proxy says to a request of one line."""
        return self.run(f"printf '{request} HTTP/1.1\\r\\n\\r\\n' | nc 127.0.0.1 3128").text

    def connect(self, address: str, port: int) -> str:
        answer = self.run(f"/work/hostile connect {address} {port}").text.strip()
        return "done" if answer == "0" else errno.errorcode[int(answer)]


@pytest.fixture(scope="module", params=KINDS)
def allowed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Allowed]:
    require(request.param)
    root = tmp_path_factory.mktemp("allowed")
    hostile = compile_hostile(tmp_path_factory.mktemp("hostile"))
    with asyncio.Runner() as runner:
        made = runner.run(_allowed(request.param, root, hostile, runner))
        yield made
        runner.run(made.box.close())
        assert runner.run(made.host.reconcile()) == []
        runner.run(made.host.leave())


async def _allowed(kind: str, root: Path, hostile: bytes, runner: asyncio.Runner) -> Allowed:
    requests: list[str] = []

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        requests.append((await reader.readuntil(b"\r\n\r\n")).decode().splitlines()[0])
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + BODY)
        writer.close()

    ports = [(await asyncio.start_server(serve, "127.0.0.1", 0)).sockets[0].getsockname()[1] for _ in range(2)]
    rules = (f"127.0.0.1:{ports[0]}", f"{NAME}:{ports[0]}", f"{NAME}:{ports[1]}")
    network = Network.allow(*rules, "10.99.98.97:80", "[fd00::97]:80", ".allowed.test:80")
    driver = DRIVERS[kind](root, Store(root / "store"))
    host = LocalHost(root, [driver])
    await host.open()
    spec = SandboxSpec(kind=driver.kind, limits=LIMITS, network=network)
    box = await Sandbox.create_from(spec, host=host)
    await box.write("/work/hostile", hostile, mode=0o755)
    return Allowed(kind, host, box, runner, *ports, requests)


def test_a_listed_address_is_reached_through_the_proxy_whole(allowed: Allowed) -> None:
    fetched = allowed.run(f"{PROXY} wget -q -O got http://127.0.0.1:{allowed.port}/a && wc -c <got")
    assert fetched.text.split()[0] == str(len(BODY)), fetched
    assert allowed.requests[-1] == "GET /a HTTP/1.1"


def test_a_listed_name_is_reached_by_programs_that_know_of_no_proxy(allowed: Allowed) -> None:
    if {info[4][0] for info in socket.getaddrinfo(NAME, allowed.port)} != {"127.0.0.1"}:
        pytest.skip(f"this host's name {NAME} does not lead to its loopback")
    assert allowed.run(f"wget -q -O - http://{NAME}:{allowed.port}/b | wc -c").text.strip() == str(len(BODY))
    tunnel = f"CONNECT {NAME}:{allowed.port}"
    assert allowed.ask_proxy(tunnel).startswith("HTTP/1.1 200")


def test_names_that_are_listed_have_an_address_of_the_loopback_and_others_none(allowed: Allowed) -> None:
    assert "127.64.0." in allowed.run("nslookup deep.allowed.test 127.0.0.1").text
    assert allowed.run("nslookup denied.test 127.0.0.1").returncode != 0


@pytest.mark.parametrize(
    "target", ["127.0.0.1:{other}", "169.254.169.254:80", "10.0.0.1:80", "pypi.org:443", "127.1:{port}", "[::1]:{port}"]
)
def test_the_proxy_says_why_it_refuses_what_is_not_listed(allowed: Allowed, target: str) -> None:
    before = len(allowed.requests)
    answer = allowed.ask_proxy("CONNECT " + target.format(port=allowed.port, other=allowed.other))
    assert answer.startswith("HTTP/1.1 403") and "is not on this sandbox's list" in answer
    assert len(allowed.requests) == before


def test_a_listed_name_that_leads_to_a_private_address_is_refused(allowed: Allowed) -> None:
    answer = allowed.ask_proxy(f"CONNECT {NAME}:{allowed.other}")
    assert answer.startswith("HTTP/1.1 403") and "leads to an address that is not public" in answer


def test_nothing_is_reached_beside_the_host(allowed: Allowed) -> None:
    for address, port in (
        ("127.0.0.1", allowed.port),
        ("127.0.0.1", allowed.other),
        ("169.254.169.254", 80),
        ("8.8.8.8", 53),
        ("10.99.98.96", 80),
        ("fd00:ec2::254", 80),
    ):
        assert allowed.connect(address, port) in UNREACHABLE, (address, port)
    assert allowed.connect("10.99.98.97", 80) == "done", "a listed address is the loopback's own"
    assert allowed.connect("fd00::97", 80) == "done"
    names = [line.split(":")[0].strip() for line in allowed.run("cat /proc/net/dev").text.splitlines()[2:]]
    assert [name for name in names if name.startswith(("eth", "en", "veth", "tap"))] == []


def test_root_inside_reaches_no_more(allowed: Allowed) -> None:
    async def ask() -> Result:
        return await allowed.box.exec(f"/work/hostile connect 127.0.0.1 {allowed.other}", user="root")

    assert allowed.runner.run(ask()).text.strip() in ("111", "101")


def test_a_crowd_of_idle_connections_ends_with_its_command_and_the_next_one_is_served(allowed: Allowed) -> None:
    crowd = "for i in 1 2 3 4 5 6 7 8; do sleep 100 | nc 127.0.0.1 3128 & done; wait"
    with pytest.raises(CommandTimeout):
        allowed.run(crowd, timeout_s=2)
    fetched = allowed.run(f"{PROXY} wget -q -O - http://127.0.0.1:{allowed.port}/ | wc -c")
    assert fetched.text.strip() == str(len(BODY)), fetched


def test_the_way_out_is_opened_again_by_who_takes_the_sandbox_over_and_by_forks(allowed: Allowed) -> None:
    fetch = f"{PROXY} wget -q -O - http://127.0.0.1:{allowed.port}/ | wc -c"

    async def scene() -> None:
        first = LocalHost(allowed.host.folders.root, allowed.host.drivers)
        await first.open()
        made = await Sandbox.create_from(allowed.box.spec, host=first)
        await first.leave()
        taken = await Sandbox.attach(made.id, host=allowed.host)
        assert (await taken.exec(fetch, timeout_s=30)).text.strip() == str(len(BODY))
        (fork,) = await taken.fork(1)
        assert (await fork.exec(fetch, timeout_s=30)).text.strip() == str(len(BODY))
        await fork.close()
        await taken.close()

    allowed.runner.run(scene())
