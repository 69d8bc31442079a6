"""What somebody may try with a token of a project, and a host that answers what it likes: nobody else is reached."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.errors import HostUnreachable, QuotaExceeded, TokenRefused, UnknownSandbox
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.fleet.projects import Quota
from benthic.sandbox.fleet.status import HostStatus
from benthic.sandbox.host import Request
from benthic.sandbox.records import SandboxSpec
from benthic.sandbox.wire import encode
from tests.sandbox.fleet.small_fleet import FLEET_TOKEN, ROOM, SmallFleet, small_fleet

Scene = Callable[[SmallFleet, str, RemoteHost], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    """A scene with the token of project `p`, and its client."""

    def run(scene: Scene) -> None:
        async def whole() -> None:
            async with small_fleet(tmp_path) as fleet:
                token = fleet.state.projects.add_token("p")
                await scene(fleet, token, fleet.client(token, patience_s=2.0))

        asyncio.run(whole())

    return run


async def raw(url: str, token: str, method: str, path: str, body: object = None, name: str = "") -> tuple[int, str]:
    """A request whose path nobody shortens."""
    reader, writer = await asyncio.open_unix_connection(url.removeprefix("unix:"))
    text = b"" if body is None else json.dumps(body).encode()
    named = f"benthic-request: {name}\r\n" if name else ""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {token}\r\n{named}"
    writer.write(f"{head}content-length: {len(text)}\r\n\r\n".encode() + text)
    answer = (await reader.read()).decode()
    writer.close()
    head, _, said = answer.partition("\r\n\r\n")
    return int(head.split()[1]), said


def test_a_key_of_a_branch_meets_no_key_of_another_project(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, token: str, client: RemoteHost) -> None:
        thief = fleet.client(fleet.state.projects.add_token("q"))
        theirs = await thief.create(SandboxSpec())
        taken = {(await thief.branch(theirs.id, 0, key=key)).id for key in ("p/task", "task", "/p/task")}
        made = await client.create(SandboxSpec(), key="task")
        assert made.id not in taken and len(taken) == 3
        assert (await client.call(made.id, 0, Request(verb="exec", arguments={"shell": "mine"}))).error is None

    play(scene)


def test_no_race_and_no_repetition_of_forks_and_branches_passes_the_quota(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, token: str, client: RemoteHost) -> None:
        mine = await client.create(SandboxSpec())
        fleet.state.projects.set_quota("p", Quota(max_sandboxes=6))
        fleet.hosts["h1"].start_s = 0.05

        async def multiply(what: str, body: dict[str, object], name: str = "") -> int:
            return (await raw(fleet.url, token, "POST", f"/sandboxes/{mine.id}/{what}", body, name))[0]

        statuses = await asyncio.gather(
            *(multiply("fork", {"count": count, "seq": 0}) for count in (1, 50, 1)),
            *(multiply("branch", {"seq": 0}) for _ in range(8)),
            *(multiply("fork", {"count": count}, "same name") for count in (1, 40)),
        )
        assert 429 in statuses
        assert len(await client.sandboxes()) <= 6
        with pytest.raises(QuotaExceeded):
            await client.fork(mine.id, 6)
        fleet.state.projects.set_quota("p", Quota(max_sandboxes=100))
        used = fleet.state.projects._used("p")[0]
        assert used >= len(await client.sandboxes())

    play(scene)


def test_a_token_that_was_taken_back_opens_nothing_more_and_a_new_one_goes_on(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, token: str, client: RemoteHost) -> None:
        info = await client.create(SandboxSpec())
        step = [Request(verb="exec", arguments={"shell": f"step {seq}"}) for seq in range(3)]
        await client.call(info.id, 0, step[0])
        admin = fleet.client(FLEET_TOKEN)
        await admin.connection.json("POST", "/tokens/remove", {"token": token})
        for attempt in (client.call(info.id, 1, step[1]), client.create(SandboxSpec()), client.close(info.id)):
            with pytest.raises(TokenRefused):
                await attempt
        fresh = fleet.client(fleet.state.projects.add_token("p"))
        assert [(await fresh.call(info.id, seq, step[seq])).seq for seq in range(3)] == [0, 1, 2]
        assert fleet.hosts["h1"].ran[info.id] == ["step 0", "step 1", "step 2"]
        with pytest.raises(UnknownSandbox):
            await fleet.client(fleet.state.projects.add_token("q")).info(info.id)

    play(scene)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\xff garbage",
        b"[]",
        b"null",
        b'{"id": 7}',
        b'{"type": "answer", "value": 3, "num_bytes": 0}\n',
        b'{"type": "answer", "num_bytes": 99}\nshort',
        b'{"type": "answer", "value": {}, "seq": "one", "num_bytes": 0}\n',
        b"[" * 100_000,
    ],
)
def test_a_server_that_answers_nonsense_is_to_blame_and_not_its_caller(tmp_path: Path, body: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    async def scene() -> None:
        name, request = "0123456789ab", Request(verb="exec", arguments={"shell": "true"})
        url = f"unix:{tmp_path}/liar.sock"
        async with await asyncio.start_unix_server(answer, f"{tmp_path}/liar.sock"):
            async with RemoteHost(url, patience_s=0.3) as host:
                for attempt in (
                    lambda: host.create(SandboxSpec()),
                    lambda: host.info(name),
                    lambda: host.call(name, 0, request),
                    lambda: host.answers(name, 0) if body.startswith((b"\0", b"null", b"[")) else host.info(name),
                    lambda: host.wait(name, 0),
                    lambda: host.snapshot(name, seq=1),
                    lambda: host.checkpoint(name),
                    lambda: anext(aiter(host.stream(name, 0, request))),
                ):
                    with pytest.raises(HostUnreachable):
                        await attempt()
            async with small_fleet(tmp_path, ()) as fleet:
                status = HostStatus(name="liar", url=url, incarnation="x", capacity=ROOM)
                await fleet.client(FLEET_TOKEN).connection.json("POST", "/hosts/liar/heartbeat", encode(status))
                client = fleet.client(patience_s=0.2)
                with pytest.raises(HostUnreachable):
                    await client.create(SandboxSpec(), key="k")

    asyncio.run(scene())
