"""What one project may do at a gateway to the sandboxes, the answers and the hosts of another: nothing."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest

from benthic.sandbox.fleet.frames import request_frame
from benthic.sandbox.fleet.projects import Quota
from benthic.sandbox.fleet.sandbox_rows import SandboxRows
from benthic.sandbox.fleet.state import open_state
from benthic.sandbox.host import Request
from benthic.sandbox.records import SnapshotRef
from tests.sandbox.fleet.small_fleet import SmallFleet, small_fleet


class Two:
    """Alice and Bob, each with a token of a project and a sandbox of its own."""

    def __init__(self, fleet: SmallFleet, alice: httpx.AsyncClient, bob: httpx.AsyncClient) -> None:
        self.fleet, self.alice, self.bob = fleet, alice, bob
        self.hers = self.his = ""


Scene = Callable[[Two], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Scene], None]:
    async def whole(scene: Scene) -> None:
        async with small_fleet(tmp_path) as fleet:
            clients = []
            for project in ("alice", "bob"):
                transport = httpx.AsyncHTTPTransport(uds=f"{tmp_path}/gateway.sock")
                headers = {"authorization": f"Bearer {fleet.state.projects.add_token(project)}"}
                clients.append(httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers))
            two = Two(fleet, *clients)
            try:
                two.hers = (await two.alice.post("/sandboxes", json={"spec": {"kind": "function"}})).json()["id"]
                two.his = (await two.bob.post("/sandboxes", json={"spec": {"kind": "function"}})).json()["id"]
                await scene(two)
            finally:
                for client in clients:
                    await client.aclose()

    return lambda scene: asyncio.run(whole(scene))


def raw(client: httpx.AsyncClient, method: str, path: str, body: bytes = b"") -> httpx.Request:
    """A request whose path is sent as it is: clients of good manners would tidy it up."""
    request = client.build_request(method, "/", content=body)
    request.url = httpx.URL(request.url, raw_path=path.encode())
    request.extensions["target"] = path.encode()
    return request


@pytest.mark.parametrize(
    "path",
    [
        "../{hers}/exec",
        "%2e%2e/{hers}/exec",
        "x/%2E%2E/%2e./{hers}/exec",
        "..%2f{hers}%2fexec",
        "exec/../../{hers}/exec",
    ],
)
def test_no_path_below_a_sandbox_of_mine_leads_to_one_of_yours(play: Callable[[Scene], None], path: str) -> None:
    async def scene(two: Two) -> None:
        asked = raw(two.bob, "POST", f"/sandboxes/{two.his}/{path.format(hers=two.hers)}", b'{"shell": "id"}')
        response = await two.bob.send(asked)
        assert response.status_code == 404, response.text
        assert response.json()["error"] in ("RequestError", "UnknownSandbox")
        assert two.fleet.hosts["h1"].ran[two.hers] == []

    play(scene)


@pytest.mark.parametrize("path", ["%2e%2e/%2e%2e/sandboxes", "../../metrics", "%2e%2e/%2e%2e/health", "openapi.json"])
def test_no_path_below_a_sandbox_leads_to_what_its_host_tells_the_fleet_alone(
    play: Callable[[Scene], None], path: str
) -> None:
    async def scene(two: Two) -> None:
        response = await two.bob.send(raw(two.bob, "GET", f"/sandboxes/{two.his}/{path}"))
        assert response.status_code == 404, response.text

    play(scene)


@pytest.mark.parametrize("verb", ["fork", "snapshot"])
def test_no_plain_call_makes_what_a_quota_counts(
    play: Callable[[Scene], None], verb: Literal["fork", "snapshot"]
) -> None:
    async def scene(two: Two) -> None:
        two.fleet.state.projects.set_quota("bob", Quota(max_sandboxes=1))
        asked = Request(verb=verb, arguments={"count": 10**9, "name": "../x"})
        body = request_frame(asked).to_bytes()
        response = await two.bob.post(f"/sandboxes/{two.his}/calls/0", content=body)
        assert (response.status_code, response.json()["error"]) == (400, "RequestError")
        assert two.fleet.hosts["h1"].num_calls == 0

    play(scene)


@pytest.mark.parametrize("limits", [{"cpus": -1000}, {"memory_bytes": -1}, {"memory_bytes": 1 << 90}, {"num_files": 0}])
def test_no_limit_is_below_nothing_so_that_it_would_make_room_in_a_quota(
    play: Callable[[Scene], None], limits: dict[str, int]
) -> None:
    async def scene(two: Two) -> None:
        response = await two.bob.post("/sandboxes", json={"spec": {"limits": limits}})
        assert response.status_code == 400, response.text
        assert f"{next(iter(limits))} must be above 0" in response.json()["message"]

    play(scene)


def test_an_answer_belongs_to_who_asked_and_to_what_was_asked(play: Callable[[Scene], None]) -> None:
    async def scene(two: Two) -> None:
        named = {"benthic-request": "1"}
        hers = await two.alice.post("/sandboxes", json={"key": "a"}, headers=named)
        again = await two.alice.post("/sandboxes", json={"key": "a"}, headers=named)
        his = await two.bob.post("/sandboxes", json={"key": "a"}, headers=named)
        assert hers.json()["id"] == again.json()["id"] != his.json()["id"]
        assert (await two.bob.delete(f"/sandboxes/{two.his}", headers=named)).json() is None

    play(scene)


def test_a_snapshot_is_known_by_all_that_its_record_says(tmp_path: Path) -> None:
    rows = SandboxRows(open_state(tmp_path / "state.sqlite"))
    ref = SnapshotRef(id="a", kind="container", seq=3, layers=("sha256:mine",))
    rows.add_snapshot(ref, "bob", "h")
    assert rows.home_of_snapshot(ref, "bob") == "h"
    assert rows.home_of_snapshot(ref, "alice") is None
    stolen = SnapshotRef(id="a", kind="container", seq=3, layers=("sha256:hers",))
    assert rows.home_of_snapshot(stolen, "bob") is None


@pytest.mark.parametrize(
    ("method", "path", "says"),
    [
        ("GET", "/", "'/' is no path of this server; docs/sandbox-fleet.md lists all"),
        ("POST", "/v1/sandboxes", "is no path of this server"),
        ("PATCH", "/sandboxes", "'/sandboxes' does not take PATCH; it takes"),
        ("GET", "/sandboxes/{his}/files", "path: Field required"),
        ("GET", "/sandboxes/{his}/files?path=/work/a&seq=x", "seq: Input should be a valid integer"),
    ],
)
def test_what_no_route_takes_is_refused_in_words(
    play: Callable[[Scene], None], method: str, path: str, says: str
) -> None:
    async def scene(two: Two) -> None:
        response = await two.bob.request(method, path.format(his=two.his))
        assert 400 <= response.status_code < 500
        assert says in response.json()["message"]

    play(scene)
