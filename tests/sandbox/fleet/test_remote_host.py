"""A sandbox of a fleet answers as one of this process would, through a gateway and an agent."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from benthic.errors import RequestError
from benthic.sandbox.errors import OutcomeUnknown, SandboxDied, TokenRefused, TrajectoryDiverged, UnknownSandbox
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.records import Chunk, Limits, Reason, SandboxSpec, State
from benthic.sandbox.wire import unpack_result
from tests.sandbox.fleet.small_fleet import FLEET_TOKEN, SmallFleet, small_fleet

SPEC = SandboxSpec(limits=Limits(cpus=0.5))
Scene = Callable[[SmallFleet, RemoteHost], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    def run(scene: Scene) -> None:
        async def whole() -> None:
            async with small_fleet(tmp_path) as fleet:
                await scene(fleet, fleet.client())

        asyncio.run(whole())

    return run


def exec_request(text: str) -> Request:
    return Request(verb="exec", arguments={"shell": text}, data=b"\x00in\xff")


def test_every_call_of_the_protocol_passes_through_both(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        info = await client.create(SPEC)
        assert info.spec == SPEC
        answer = await client.call(info.id, 0, exec_request("echo"))
        result = unpack_result(answer.value, answer.data)
        assert (result.stdout, result.stderr) == (b"1: \x00in\xff", b"\xff")
        assert (await client.call(info.id, 1, Request(verb="read", arguments={"path": "/a"}))).data == b"content of /a"
        items = [item async for item in client.stream(info.id, 2, exec_request("stream"))]
        assert b"".join(i.data for i in items if isinstance(i, Chunk) and i.stream == "stdout").count(b"piece") == 5
        assert isinstance(items[-1], Answer)
        assert [chunk.data async for chunk in client.output(info.id, 2)] == [b"output of 2"]
        assert (await client.wait(info.id, 2)).returncode == 3
        await client.signal(info.id, 2, 9)
        await client.resize(info.id, 2, 10, 20)
        await client.feed(info.id, 2, b"typed")
        await client.feed(info.id, 2, None)
        await client.renew(info.id, 7.0)
        assert await client.expose(info.id, 80) == f"/run/{info.id}.80"
        assert (await client.snapshot(info.id, "s", seq=3)).id == "s"
        assert len(await client.fork(info.id, 2)) == 2
        assert (await client.branch(info.id, 1, key="b")).id == (await client.branch(info.id, 1, key="b")).id
        assert (await client.checkpoint(info.id)).last_seq == 2
        await client.pause(info.id)
        assert (await client.info(info.id)).state is State.PAUSED
        await client.resume(info.id)
        assert [record["verb"] for record in await client.log(info.id)] == ["exec", "read", "exec"]
        assert len(await client.sandboxes()) == 4
        await client.close(info.id)
        assert (await client.info(info.id)).reason is Reason.CLOSED
        with pytest.raises(SandboxDied, match="closed"):
            await client.call(info.id, 3, exec_request("late"))
        host = fleet.hosts["h1"]
        assert host.ran[info.id] == ["echo", "read", "stream", "signal 9 to 2", "resize 10 20"]
        assert host.fed == [b"typed", None]
        assert host.leases == {info.id: 7.0}

    play(scene)


def test_the_same_call_twice_runs_once_and_another_one_in_its_place_is_refused(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        info = await client.create(SPEC)
        first, second = [await client.call(info.id, 0, exec_request("once")) for _ in range(2)]
        assert (first.data, first.is_replayed, second.is_replayed) == (second.data, False, True)
        with pytest.raises(TrajectoryDiverged):
            await client.call(info.id, 0, exec_request("other"))
        assert fleet.hosts["h1"].ran[info.id] == ["once"]

    play(scene)


def test_a_key_makes_one_sandbox_however_often_and_by_whom_it_is_sent(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        fleet.hosts["h1"].start_s = 0.05
        infos = await asyncio.gather(*(client.create(SPEC, key="k") for _ in range(20)))
        assert len({info.id for info in infos}) == 1
        assert fleet.hosts["h1"].num_creates == 1
        other = fleet.client(fleet.state.projects.add_token("q"))
        assert (await other.create(SPEC, key="k")).id != infos[0].id

    play(scene)


def test_a_project_sees_no_sandbox_of_another(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        info = await client.create(SPEC)
        other = fleet.client(fleet.state.projects.add_token("q"))
        assert await other.sandboxes() == []
        for path in ("", "/log", "/../" + info.id, "/calls/0"):
            with pytest.raises((UnknownSandbox, RequestError)):
                await other.connection.json("POST" if "calls" in path else "GET", f"/sandboxes/{info.id}{path}")
        assert (await fleet.client(FLEET_TOKEN).info(info.id)).id == info.id

    play(scene)


@pytest.mark.parametrize("name", ["..", "a/../b", "%2e%2e", "a\nb", "", "x" * 300, "../hosts"])
def test_an_id_from_outside_reaches_no_other_path(play: Callable[[Scene], None], name: str) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        with pytest.raises((UnknownSandbox, TokenRefused, RequestError)):
            await client.log(name)

    play(scene)


def test_a_wrong_or_missing_token_opens_neither_gateway_nor_agent(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        for url in (fleet.url, fleet.agent_url("h1")):
            for token in (None, "", "bsk-wrong", "the fleet's owm", FLEET_TOKEN + "x"):
                async with RemoteHost(url, token=token) as stranger:
                    with pytest.raises(TokenRefused):
                        await stranger.create(SPEC)
        with pytest.raises(TokenRefused):
            await client.connection.json("GET", "/hosts")
        assert fleet.hosts["h1"].num_creates == 0

    play(scene)


def test_a_long_call_is_asked_for_again_and_runs_once(play: Callable[[Scene], None], monkeypatch: Any) -> None:
    monkeypatch.setattr("benthic.sandbox.fleet.connection.HOLD_S", 0.05)

    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        info = await client.create(SPEC)
        host = fleet.hosts["h1"]
        host.gate.clear()
        call = asyncio.create_task(client.call(info.id, 0, exec_request("long")))
        feed = asyncio.create_task(client.feed(info.id, 0, b"x"))
        await asyncio.sleep(0.4)
        assert not call.done()
        host.gate.set()
        assert (await call).seq == 0
        await feed
        assert host.ran[info.id] == ["long"]
        assert host.fed == [b"x"]

    play(scene)


def test_a_call_goes_on_through_a_restart_of_the_gateway(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        info = await client.create(SPEC)
        host = fleet.hosts["h1"]
        host.gate.clear()
        call = asyncio.create_task(client.call(info.id, 0, exec_request("long")))
        feed = asyncio.create_task(client.feed(info.id, 0, b"x"))
        await fleet.until(lambda: host.ran[info.id] == ["long"])
        await fleet.stop("gateway")
        await asyncio.sleep(0.1)
        host.gate.set()
        await fleet.start_gateway()
        assert (await call).seq == 0
        await feed
        assert (host.ran[info.id], host.fed) == (["long"], [b"x"])

    play(scene)


def test_input_that_an_earlier_agent_may_have_taken_is_not_fed_twice(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        info = await client.create(SPEC)
        fleet.hosts["h1"].gate.clear()
        feed = asyncio.create_task(client.feed(info.id, 0, b"x"))
        await asyncio.sleep(0.2)
        await fleet.stop("h1")
        await fleet.start_agent("h1")
        fleet.hosts["h1"].gate.set()
        with pytest.raises(OutcomeUnknown, match="started anew"):
            await feed

    play(scene)


def test_a_lease_is_renewed_while_the_client_lives(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, client: RemoteHost) -> None:
        holder = fleet.client(lease_s=0.15)
        info = await holder.create(SPEC)
        leases = fleet.hosts["h1"].leases
        for _ in range(3):
            await fleet.until(lambda: leases.pop(info.id, None) == 0.15)
        await holder.aclose()
        leases.clear()
        await asyncio.sleep(0.2)
        assert leases == {}

    play(scene)
