"""The gateway as `curl` and a browser see it."""

import asyncio
import base64
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from benthic.sandbox.fleet.agent import Agent, agent_app
from benthic.sandbox.fleet.config import AgentConfig
from benthic.sandbox.records import SandboxSpec
from tests.sandbox.fleet.fake_host import FakeHost
from tests.sandbox.fleet.small_fleet import ROOM, SmallFleet, small_fleet

Scene = Callable[[SmallFleet, httpx.AsyncClient, str], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    async def whole(scene: Scene) -> None:
        async with small_fleet(tmp_path) as fleet:
            token = fleet.state.projects.add_token("p")
            transport = httpx.AsyncHTTPTransport(uds=f"{tmp_path}/gateway.sock")
            headers = {"authorization": f"Bearer {token}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as curl:
                made = (await curl.post("/sandboxes", json={"spec": {"kind": "function"}, "key": "k"})).json()
                await scene(fleet, curl, made["id"])

    return lambda scene: asyncio.run(whole(scene))


def test_a_command_is_json_in_and_out(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, curl: httpx.AsyncClient, sandbox_id: str) -> None:
        path = f"/sandboxes/{sandbox_id}/exec"
        body = {"shell": "cat", "stdin": "hello", "env": {"A": "1"}}
        first = (await curl.post(path, json=body)).json()
        assert (first["stdout"], first["stderr"], first["returncode"], first["seq"]) == ("1: hello", "\ufffd", 0, 0)
        second = (await curl.post(path, json=body)).json()
        assert (second["stdout"], second["seq"]) == ("2: hello", 1)
        again = (await curl.post(path, json={**body, "seq": 1})).json()
        assert (again["stdout"], again["is_replayed"]) == ("2: hello", True)
        assert fleet.hosts["h1"].ran[sandbox_id] == ["cat", "cat"]

    play(scene)


def test_calls_without_a_place_take_one_after_another(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, curl: httpx.AsyncClient, sandbox_id: str) -> None:
        posts = [curl.post(f"/sandboxes/{sandbox_id}/exec", json={"shell": "x"}) for _ in range(10)]
        answers = [response.json() for response in await asyncio.gather(*posts)]
        assert sorted(answer["seq"] for answer in answers) == list(range(10))

    play(scene)


def test_output_streams_as_lines_of_json(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, curl: httpx.AsyncClient, sandbox_id: str) -> None:
        headers = {"accept": "application/x-ndjson"}
        response = await curl.post(f"/sandboxes/{sandbox_id}/exec", json={"shell": "x"}, headers=headers)
        lines = [json.loads(line) for line in response.text.splitlines()]
        assert [line.get("stream") for line in lines] == ["stdout"] * 5 + ["stderr", None]
        assert lines[-1]["result"]["returncode"] == 0

    play(scene)


def test_a_file_is_a_body(play: Callable[[Scene], None]) -> None:
    async def scene(fleet: SmallFleet, curl: httpx.AsyncClient, sandbox_id: str) -> None:
        path = f"/sandboxes/{sandbox_id}/files"
        assert (await curl.put(path, params={"path": "/a b"}, content=b"\x00")).json() == {"seq": 0}
        assert (await curl.get(path, params={"path": "/a b"})).content == b"content of /a b"

    play(scene)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{}", 400, "either argv or shell"),
        (b"[]", 400, "must be a JSON object"),
        (b"{", 400, "must be JSON"),
        (b'{"shell": "a", "color": 1}', 400, "unknown field 'color'"),
        (b'{"shell": "a", "env": [1]}', 400, "env must be an object"),
        (b'{"shell": "a", "seq": "1"}', 400, "seq must be of type int"),
        (b'{"shell": "a", "timeout_s": "soon"}', 400, "timeout_s must be of type float"),
    ],
)
def test_a_wrong_body_is_refused_with_what_is_wrong(
    play: Callable[[Scene], None], body: bytes, status: int, said: str
) -> None:
    async def scene(fleet: SmallFleet, curl: httpx.AsyncClient, sandbox_id: str) -> None:
        response = await curl.post(f"/sandboxes/{sandbox_id}/exec", content=body)
        assert response.status_code == status
        assert said in response.json()["message"]
        assert fleet.hosts["h1"].ran[sandbox_id] == []

    play(scene)


def test_a_body_beyond_all_bounds_is_refused(play: Callable[[Scene], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benthic.sandbox.fleet.responses.MAX_BODY_BYTES", 1000)

    async def scene(fleet: SmallFleet, curl: httpx.AsyncClient, sandbox_id: str) -> None:
        response = await curl.put(f"/sandboxes/{sandbox_id}/files", params={"path": "/a"}, content=b"x" * 1001)
        assert (response.status_code, "larger than 1000" in response.text) == (400, True)

    play(scene)


def test_a_terminal_carries_bytes_both_ways(tmp_path: Path) -> None:
    host = FakeHost()
    info = asyncio.run(host.create(SandboxSpec()))
    config = AgentConfig(listen=f"unix:{tmp_path}/a", token="t")
    with TestClient(agent_app(Agent(host, config, capacity=ROOM))) as client:
        headers = {"authorization": "Bearer t"}
        path = f"/sandboxes/{info.id}/terminal?rows=5&columns=7"
        with client.websocket_connect(path, headers=headers) as socket:
            assert socket.receive_bytes() == b"output of 0"
            assert json.loads(socket.receive_text()) == {"returncode": 3, "reason": "exited"}
        with pytest.raises(WebSocketDisconnect), client.websocket_connect(path):
            pass
    request = host.logs[info.id][0][0]
    assert (request.verb, request.arguments["terminal"], request.arguments["shell"]) == ("spawn", [5, 7], "exec sh")
    assert base64.b64encode(request.data) == b""
