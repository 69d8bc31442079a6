"""A program that is run again at a fleet gets its log in pages, and whatever is not in them from the host itself."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.errors import HostUnreachable, TrajectoryDiverged
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.records import Chunk, SandboxSpec
from tests.sandbox.fleet.fake_host import PAGE_CALLS, FakeHost
from tests.sandbox.fleet.small_fleet import SmallFleet, small_fleet

Scene = Callable[[SmallFleet, FakeHost, str, RemoteHost], Coroutine[Any, Any, None]]
NUM_CALLS = 2 * PAGE_CALLS + 50


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    """A scene with a sandbox of so many logged calls, and a client that has never called it."""

    def run(scene: Scene) -> None:
        async def whole() -> None:
            async with small_fleet(tmp_path) as fleet:
                first = fleet.client()
                sandbox_id = (await first.create(SandboxSpec())).id
                host = fleet.hosts["h1"]
                for seq in range(NUM_CALLS):  # past the agent, which would only take longer
                    await host.call(sandbox_id, seq, call_of(seq))
                host.num_calls = 0
                await scene(fleet, host, sandbox_id, fleet.client())

        asyncio.run(whole())

    return run


def call_of(seq: int) -> Request:
    return Request(verb="exec", arguments={"shell": f"command {seq}"})


def test_a_replay_takes_a_request_a_page_and_says_the_same(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, host: FakeHost, sandbox_id: str, client: RemoteHost) -> None:
        answers = [await client.call(sandbox_id, seq, call_of(seq)) for seq in range(NUM_CALLS)]
        logged = [done.result() for _, done in host.logs[sandbox_id]]
        assert [(a.seq, a.value, a.data) for a in answers] == [(a.seq, a.value, a.data) for a in logged]
        assert all(answer.is_replayed for answer in answers)
        assert host.pages == [1, PAGE_CALLS + 2, 2 * PAGE_CALLS + 3]  # behind each call that the host had to answer
        assert host.num_calls == 3
        fresh = await client.call(sandbox_id, NUM_CALLS, call_of(NUM_CALLS))
        assert not fresh.is_replayed
        assert (host.num_calls, len(host.ran[sandbox_id])) == (4, NUM_CALLS + 1)

    play(scene)


def test_a_command_that_is_streamed_again_comes_from_the_page(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, host: FakeHost, sandbox_id: str, client: RemoteHost) -> None:
        await client.call(sandbox_id, 0, call_of(0))
        *chunks, answer = [item async for item in client.stream(sandbox_id, 1, call_of(1))]
        assert isinstance(answer, Answer) and answer.is_replayed
        assert chunks == [Chunk("stdout", b"2: "), Chunk("stderr", b"\xff")]
        assert host.num_calls == 1

    play(scene)


def test_a_program_that_differs_from_its_log_is_told_so_by_the_host(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, host: FakeHost, sandbox_id: str, client: RemoteHost) -> None:
        for seq in range(5):
            await client.call(sandbox_id, seq, call_of(seq))
        for different in (call_of(99), Request(verb="exec", arguments=call_of(5).arguments, data=b"x")):
            with pytest.raises(TrajectoryDiverged):
                await client.call(sandbox_id, 5, different)
        assert (await client.call(sandbox_id, 5, call_of(5))).is_replayed
        assert len(host.ran[sandbox_id]) == NUM_CALLS

    play(scene)


def test_an_old_page_lets_nothing_run_twice_beside_another_client(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, host: FakeHost, sandbox_id: str, client: RemoteHost) -> None:
        for seq in range(NUM_CALLS - 2):
            await client.call(sandbox_id, seq, call_of(seq))  # its page ends with the log
        other = fleet.client()
        for seq in range(NUM_CALLS, NUM_CALLS + 3):
            await other.call(sandbox_id, seq, call_of(seq))
        answers = [await client.call(sandbox_id, seq, call_of(seq)) for seq in range(NUM_CALLS - 2, NUM_CALLS + 3)]
        assert all(answer.is_replayed for answer in answers)
        with pytest.raises(TrajectoryDiverged):
            await client.call(sandbox_id, NUM_CALLS + 2, call_of(0))
        assert host.ran[sandbox_id] == [f"command {seq}" for seq in range(NUM_CALLS + 3)]

    play(scene)


def test_calls_side_by_side_share_a_page(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, host: FakeHost, sandbox_id: str, client: RemoteHost) -> None:
        answers = await asyncio.gather(*(client.call(sandbox_id, seq, call_of(seq)) for seq in range(20)))
        assert [answer.seq for answer in answers] == list(range(20))
        assert len(host.pages) < 10

    play(scene)


def test_a_long_replay_leaves_time_for_the_lease(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, host: FakeHost, sandbox_id: str, client: RemoteHost) -> None:
        holder = fleet.client(lease_s=30.0)
        await holder.call(sandbox_id, 0, call_of(0))
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        for seq in range(1, 50):
            await holder.call(sandbox_id, seq, call_of(seq))
        ticking.cancel()
        assert ticks >= 45
        await fleet.until(lambda: host.leases == {sandbox_id: 30.0})

    play(scene)


@pytest.mark.parametrize("wrong", ["an error", "garbage", "a cut page", "another shape"])
def test_without_a_page_each_call_is_answered_by_the_host(
    play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    bodies = {
        "garbage": b"\0" * 50,
        "a cut page": b'{"type":"answer","num_bytes":50}\nx',
        "another shape": b'{"type":"x"}\n',
    }

    async def scene(fleet: SmallFleet, host: FakeHost, sandbox_id: str, client: RemoteHost) -> None:
        async def fails(*_: object) -> None:
            raise HostUnreachable("no page")

        if wrong == "an error":
            monkeypatch.setattr(host, "answers", fails)
        else:
            monkeypatch.setattr("benthic.sandbox.fleet.responses.logged_frames", lambda _: bodies[wrong])
        answers = [await client.call(sandbox_id, seq, call_of(seq)) for seq in range(5)]
        assert all(answer.is_replayed for answer in answers)
        assert host.num_calls == 5

    play(scene)


def test_few_pages_are_kept(play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benthic.sandbox.fleet.replay._KEPT_PAGES", 2)

    async def scene(fleet: SmallFleet, host: FakeHost, sandbox_id: str, client: RemoteHost) -> None:
        others = [(await client.create(SandboxSpec())).id for _ in range(2)]
        for name in others:
            for seq in range(3):
                await host.call(name, seq, call_of(seq))
        host.num_calls = 0
        for name in (sandbox_id, *others):
            await client.call(name, 0, call_of(0))
        assert host.num_calls == 3
        await client.call(others[1], 1, call_of(1))
        assert host.num_calls == 3
        await client.call(sandbox_id, 1, call_of(1))
        assert host.num_calls == 4

    play(scene)
