"""The control routes: for the holder of the admin key only, answered when the engine has done it, never in the way."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.anyio
KEY = {"authorization": "Bearer boss"}
ENDLESS = {"model": "tiny", "prompt": "hi", "ignore_eos": True, "max_tokens": 400, "stream": True}


async def post(up: Any, path: str, **body: object) -> dict[str, Any]:
    response = await up.client.post(path, json=body, headers=KEY)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer.pop("success") is True
    return answer


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    return error


async def until(condition: Callable[[], bool]) -> bool:
    for _ in range(500):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


async def test_without_an_admin_key_there_are_no_control_routes(scripted: Any) -> None:
    async with scripted("one") as up:
        for path in ("/pause_generation", "/flush_cache", "/update_weights_from_disk"):
            assert refusal(await up.client.post(path, json={}), 404)["code"] == "unknown_url"
        refusal(await up.client.get("/dump_state"), 404)


async def test_control_routes_want_the_admin_key_and_not_the_clients(scripted: Any) -> None:
    async with scripted("one", admin_key="boss", api_key="client") as up:
        for headers in ({}, {"authorization": "Bearer client"}, {"authorization": "Bearer wrong"}):
            refusal(await up.client.post("/pause_generation", json={}, headers=headers), 401)
            refusal(await up.client.get("/server_info", headers=headers), 401)
        assert (await up.client.get("/server_info", headers=KEY)).status_code == 200
        refusal(await up.client.post("/v1/completions", json=ENDLESS, headers=KEY), 401)


async def test_nothing_is_generated_between_pause_and_continue(live: Any) -> None:
    with live("one two three", step_s=0.005, admin_key="boss") as up:
        stream = asyncio.ensure_future(up.client.post("/v1/completions", json={**ENDLESS, "max_tokens": 100}))
        assert await until(lambda: up.service.metrics.generated_tokens._value.get() > 3)
        assert await post(up, "/pause_generation", mode="in_place") == {"mode": "keep"}
        await asyncio.sleep(0.05)
        before = up.service.metrics.generated_tokens._value.get()
        late = asyncio.ensure_future(up.client.post("/v1/completions", json={**ENDLESS, "max_tokens": 1}))
        await asyncio.sleep(0.1)
        assert up.service.metrics.generated_tokens._value.get() == before
        assert not late.done()
        assert await post(up, "/continue_generation") == {}
        assert (await stream).text.endswith("[DONE]\n\n")
        assert (await late).text.endswith("[DONE]\n\n")


@pytest.mark.parametrize(
    ("route", "fields"),
    [("/pause_generation", {"mode": "abort"}), ("/abort_request", {"abort_all": True})],
    ids=["pause", "abort"],
)
async def test_who_is_aborted_is_told_so_and_that_nothing_has_failed(
    live: Any, route: str, fields: dict[str, Any]
) -> None:
    with live("one two three", step_s=0.01, admin_key="boss") as up:
        bodies = [ENDLESS, {**ENDLESS, "stream": False}]
        tasks = [asyncio.ensure_future(up.client.post("/v1/completions", json=body)) for body in bodies]
        assert await until(lambda: up.service.channel.num_open == 2)
        await post(up, route, **fields)
        stream, plain = await asyncio.gather(*tasks)
        assert '"error":{' in stream.text and '"code":"cancelled"' in stream.text
        assert (plain.status_code, plain.json()["error"]["code"]) == (409, "cancelled")
        assert plain.headers["x-should-retry"] == "false"
        await post(up, "/continue_generation")


async def test_new_weights_have_the_version_that_was_given_or_the_next_one(scripted: Any, tmp_path: Path) -> None:
    async with scripted("one", admin_key="boss") as up:
        folder = str(tmp_path)
        assert await post(up, "/update_weights_from_disk", model_path=folder, weight_version=7) == {"weight_version": 7}
        assert await post(up, "/update_weights_from_disk", model_path=folder) == {"weight_version": 8}
        assert (await up.client.get("/get_weight_version", headers=KEY)).json() == {"weight_version": 8}
        wrong = await up.client.post("/update_weights_from_disk", json={"model_path": f"{folder}/absent"}, headers=KEY)
        assert "no checkpoint at" in refusal(wrong, 400)["message"]
        assert (await up.client.get("/get_weight_version", headers=KEY)).json() == {"weight_version": 8}


async def test_one_request_or_all_can_be_aborted_and_their_clients_are_told(live: Any) -> None:
    with live("one two three", step_s=0.01, admin_key="boss") as up:
        async with up.client.stream("POST", "/v1/completions", json=ENDLESS) as first:
            lines = aiter(first.aiter_lines())
            chunk = await anext(lines)
            rid = chunk.split('"id":"')[1].split('"')[0]
            other = asyncio.ensure_future(up.client.post("/v1/completions", json={**ENDLESS, "n": 2}))
            assert await until(lambda: up.service.channel.num_open == 3)
            assert await post(up, "/abort_request", rid=rid) == {"num_aborted": 1}
            assert await until(lambda: up.service.channel.num_open == 2)
            assert not other.done()
            assert await post(up, "/abort_request", abort_all=True) == {"num_aborted": 2}
            assert '"error":{' in (await other).text
            assert await post(up, "/abort_request", rid="cmpl-unknown") == {"num_aborted": 0}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/pause_generation", {"mode": "sideways"}, "mode"),
        ("/update_weights_from_disk", {}, "model_path"),
        ("/update_weights_from_disk", {"model_path": "x", "weight_version": -1}, "weight_version"),
        ("/update_weights_from_disk", {"model_path": "x", "weight_version": "new"}, "weight_version"),
        ("/abort_request", {}, "rid"),
        ("/abort_request", {"rid": "a", "abort_all": True}, "rid"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_its_field(
    scripted: Any, path: str, body: dict[str, Any], param: str
) -> None:
    async with scripted("one", admin_key="boss") as up:
        assert refusal(await up.client.post(path, json=body, headers=KEY), 400)["param"] == param


async def test_an_empty_body_is_an_empty_object(scripted: Any) -> None:
    async with scripted("one", admin_key="boss") as up:
        for path in ("/pause_generation", "/continue_generation", "/flush_cache"):
            assert (await up.client.post(path, headers=KEY)).status_code == 200


async def test_the_state_is_shown_to_programs_and_to_people(scripted: Any) -> None:
    async with scripted("one", admin_key="boss") as up:
        info = (await up.client.get("/server_info", headers=KEY)).json()
        assert info["state"] == "ok"
        assert info["engine"]["max_num_seqs"] == 64
        assert info["stats"]["num_running"] == 0
        assert info["num_restarts"] == 0
        dump = await up.client.get("/dump_state", headers=KEY)
        assert dump.text == "scripted: 0 live"
