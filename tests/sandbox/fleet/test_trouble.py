"""A fleet in trouble: its file is full or locked, its gateway goes in the middle of a storm, its terminals are cut."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from benthic.errors import RequestError
from benthic.sandbox.errors import HostUnreachable
from benthic.sandbox.fleet.agent import Agent, agent_app
from benthic.sandbox.fleet.config import AgentConfig
from benthic.sandbox.fleet.state import open_state, transaction
from benthic.sandbox.fleet.watcher import Watcher
from benthic.sandbox.records import Chunk, SandboxSpec
from tests.sandbox.fleet.fake_host import FakeHost
from tests.sandbox.fleet.small_fleet import ROOM, small_fleet

SPEC = SandboxSpec()


def test_a_full_state_file_is_said_to_pass_and_what_it_refused_was_not_done(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, lost_after_s=0.6, orphan_after_s=30.0) as fleet:
            client, sql = fleet.client(patience_s=30.0), fleet.state.sql
            await client.create(SPEC, key="first")
            (num_pages,) = sql.execute("PRAGMA page_count").fetchone()
            sql.execute(f"PRAGMA max_page_count = {num_pages}")
            padding = SandboxSpec(env=tuple((f"NAME{n}", "x" * 1000) for n in range(20)))
            creating = asyncio.create_task(client.create(padding, key="second"))
            await asyncio.sleep(0.8)
            assert not creating.done() and not sql.in_transaction
            assert len(await client.sandboxes()) == 1
            sql.execute("PRAGMA max_page_count = 100000")
            made = await creating
            assert {info.id for info in await client.sandboxes()} >= {made.id}
            assert fleet.hosts["h1"].num_creates == 2, "the host was asked again by the same key"
            await fleet.stop("h1")
            await fleet.until(lambda: fleet.state.hosts.get("h1").is_lost)  # the watcher has lived through it

    asyncio.run(scene())


def test_a_locked_state_file_is_waited_for_a_little_and_then_said_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benthic.sandbox.fleet.state._LOCKED_S", 0.05)
    sql = open_state(tmp_path / "state.sqlite")
    other = sqlite3.connect(tmp_path / "state.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(HostUnreachable, match="locked"), transaction(sql):
        pytest.fail("inside")
    other.execute("COMMIT")
    with transaction(sql):
        sql.execute("INSERT INTO quotas (project) VALUES ('p')")
    assert sql.execute("SELECT project FROM quotas").fetchall() == [("p",)]
    sql.close()
    other.close()


def test_the_watcher_goes_on_when_a_look_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, (), lost_after_s=0.06) as fleet:
            looks = 0

            def look(_: Watcher) -> None:
                nonlocal looks
                looks += 1
                raise HostUnreachable("the file is full")

            monkeypatch.setattr(Watcher, "look", look)
            await fleet.until(lambda: looks > 3)

    asyncio.run(scene())


def test_a_burst_goes_on_through_restarts_of_the_gateway_and_makes_none_twice(tmp_path: Path) -> None:
    async def scene() -> None:
        async with small_fleet(tmp_path, ("h1", "h2"), orphan_after_s=30.0) as fleet:
            client = fleet.client(patience_s=60.0)
            for host in fleet.hosts.values():
                host.start_s = 0.1
            burst = [asyncio.create_task(client.create(SPEC, key=f"k{n}")) for n in range(40)]
            for least in (5, 15):
                await fleet.until(lambda: sum(h.num_creates for h in fleet.hosts.values()) >= least, 30.0)  # noqa: B023
                await fleet.stop("gateway")
                await asyncio.sleep(0.15)
                await fleet.start_gateway()
            infos = await asyncio.gather(*burst)
            assert len({info.id for info in infos}) == 40 == sum(h.num_creates for h in fleet.hosts.values())
            assert len(fleet.state.sandboxes.alive()) == 40
            assert fleet.state.projects._used("p")[0] == 40

    asyncio.run(scene())


class QuietHost(FakeHost):
    """A command without output, and how many read it."""

    def __init__(self) -> None:
        super().__init__()
        self.num_readers = 0
        self.feed_error: RequestError | None = None

    async def output(self, sandbox_id: str, seq: int) -> AsyncIterator[Chunk]:
        self.num_readers += 1
        try:
            yield Chunk("stdout", b"$ ")
            await asyncio.Event().wait()
        finally:
            self.num_readers -= 1

    async def feed(self, sandbox_id: str, seq: int, data: bytes | None) -> None:
        if self.feed_error is not None:
            raise self.feed_error
        await super().feed(sandbox_id, seq, data)


class Browser:
    """One WebSocket of an application, as its server would carry it."""

    def __init__(self, agent: Agent, sandbox_id: str, seq: int) -> None:
        self.incoming: asyncio.Queue[Any] = asyncio.Queue()
        self.outgoing: asyncio.Queue[Any] = asyncio.Queue()
        path = f"/sandboxes/{sandbox_id}/terminal"
        scope = {
            "type": "websocket",
            "path": path,
            "raw_path": path.encode(),
            "query_string": f"seq={seq}".encode(),
            "headers": [(b"authorization", b"Bearer t")],
            "subprotocols": [],
        }
        self.incoming.put_nowait({"type": "websocket.connect"})
        self.served = asyncio.ensure_future(agent_app(agent)(scope, self.incoming.get, self.outgoing.put))

    async def hears(self, kind: str) -> Any:
        message = await asyncio.wait_for(self.outgoing.get(), 10.0)
        assert message["type"] == f"websocket.{kind}", message
        return message

    def says(self, **what: object) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", **what})

    async def opened(self) -> None:
        await self.hears("accept")
        assert (await self.hears("send"))["bytes"] == b"$ "


def play_terminal(folder: Path, scene: Callable[[QuietHost, Agent, str], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        host = QuietHost()
        agent = Agent(host, AgentConfig(listen=f"unix:{folder}/a", token="t"), capacity=ROOM)
        await scene(host, agent, (await host.create(SPEC)).id)

    asyncio.run(whole())


def test_a_terminal_whose_browser_is_gone_is_read_no_more_and_is_found_again(tmp_path: Path) -> None:
    async def scene(host: QuietHost, agent: Agent, sandbox_id: str) -> None:
        for typed in (b"one", b"two"):
            browser = Browser(agent, sandbox_id, 0)
            await browser.opened()
            assert host.num_readers == 1
            browser.says(bytes=typed)
            browser.incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})
            await asyncio.wait_for(browser.served, 10.0)
            assert host.num_readers == 0
        assert (host.fed, len(host.ran[sandbox_id])) == ([b"one", b"two"], 1)

    play_terminal(tmp_path, scene)


def test_a_terminal_whose_input_is_refused_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benthic.sandbox.fleet.terminal._LAST_WORDS_S", 0.05)

    async def scene(host: QuietHost, agent: Agent, sandbox_id: str) -> None:
        for text in ('{"rows": "many", "columns": 80}', "[]", "[" * 10_000):
            browser = Browser(agent, sandbox_id, 0)
            await browser.opened()
            browser.says(text=text)
            message = await browser.hears("close")
            assert message["code"] == 1008 and "size" in message["reason"]
        host.feed_error = RequestError("nobody listens")
        browser = Browser(agent, sandbox_id, 0)
        await browser.opened()
        browser.says(bytes=b"x")
        assert (await browser.hears("close"))["reason"] == "nobody listens"

    play_terminal(tmp_path, scene)
