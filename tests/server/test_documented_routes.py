"""B189: the page, the application and the answer to a wrong path tell of the same routes."""

import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from benthic.server.app import create_app
from benthic.server.control import CONTROL_PATHS
from benthic.server.refusals import UNBUILT

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).resolve().parents[2] / "docs" / "http.md"


def documented() -> set[str]:
    rows = [line.split("|")[1] for line in PAGE.read_text().splitlines() if re.match(r"\| `(GET|POST) /", line)]
    routes = [route for row in rows for route in re.findall(r"`((?:GET|POST) /[^`]*)`", row)]
    assert len(routes) == len(set(routes))
    return set(routes) - {"GET /openapi.json", "GET /"}


async def test_b189_the_page_lists_the_routes_that_there_are(scripted: Any) -> None:
    async with scripted("one", admin_key="boss", playground=False) as up:
        routes = [route for route in create_app(up.service).routes if isinstance(route, APIRoute)]
    registered = {
        f"{method} {re.sub(r':path', '', route.path).replace('{model_id}', '{id}')}"
        for route in routes
        if route.name != UNBUILT
        for method in route.methods - {"HEAD"}
    }
    assert registered == documented()


async def test_every_control_route_is_behind_the_admin_key(scripted: Any) -> None:
    async with scripted("one", admin_key="boss", api_key="client") as up:
        routes = {route.path: route for route in create_app(up.service).routes if isinstance(route, APIRoute)}
        assert routes.keys() >= CONTROL_PATHS
        for path in CONTROL_PATHS:
            [method] = routes[path].methods - {"HEAD"}
            answer = await up.client.request(method, path, headers={"x-api-key": "client"})
            assert answer.status_code == 401, path
            assert "admin key" in answer.json()["error"]["message"]


async def test_b189_a_wrong_path_is_answered_with_the_right_ones(scripted: Any) -> None:
    async with scripted("one") as up:
        for method, path in (("GET", "/v2/nothing"), ("POST", "/generate_text")):
            answer = await up.client.request(method, path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (404, "unknown_url")
            for known in ("/v1/chat/completions", "/v1/messages", "/v1/models"):
                assert known in error["message"]
            assert "/flush_cache" not in error["message"]
            assert ":path" not in error["message"]


async def test_a_path_with_one_slash_too_many_is_told_the_right_one(scripted: Any) -> None:
    async with scripted("one") as up:
        paths = (
            "/v1/chat/completions/",
            "/v1/completions/",
            "/v1/responses/",
            "/v1/messages/",
            "/v1/models/",
            "/ready/",
        )
        for path in paths:
            method = "GET" if path in ("/v1/models/", "/ready/") else "POST"
            answer = await up.client.request(method, path)
            error = answer.json().get("error")
            assert (answer.status_code, error["code"]) == (404, "unknown_url"), path
            assert f"did you mean {path[:-1]}?" in error["message"]


async def test_without_an_admin_key_a_control_route_says_what_it_wants(scripted: Any) -> None:
    async with scripted("one") as up:
        for path in CONTROL_PATHS:
            answer = await up.client.post(path)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (404, "unknown_url"), path
            assert "admin_key" in error["message"]
