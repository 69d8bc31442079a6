"""Profiles over HTTP: for the holder of the admin key, with a path to a file that can be opened."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.anyio
KEY = {"authorization": "Bearer boss"}


async def test_a_trace_is_recorded_between_start_and_stop(scripted: Any, tmp_path: Path) -> None:
    async with scripted("one two three", admin_key="boss", api_key="client") as up:
        body = {"output_dir": str(tmp_path), "num_steps": 3}
        assert (await up.client.post("/start_profile", json=body, headers={"x-api-key": "client"})).status_code == 401
        started = (await up.client.post("/start_profile", json=body, headers=KEY)).json()
        assert started["success"] is True
        assert Path(started["path"]).parent == tmp_path
        asked = {"prompt": "hi", "max_tokens": 5, "ignore_eos": True}
        await up.client.post("/v1/completions", json=asked, headers={"x-api-key": "client"})
        stopped = (await up.client.post("/stop_profile", headers=KEY)).json()
        assert stopped == {"success": True, "path": started["path"]}
    with gzip.open(stopped["path"]) as file:
        names = [event["name"] for event in json.load(file)["traceEvents"]]
    assert [name for name in names if name.startswith("step ")] == ["step 1", "step 2", "step 3"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"num_steps": 0}, "num_steps"),
        ({"num_steps": 10**9}, "num_steps"),
        ({"output_dir": "/dev/null/x"}, "output_dir"),
    ],
    ids=["none", "too many", "no folder"],
)
async def test_what_cannot_be_recorded_is_refused_by_its_field(scripted: Any, body: Any, param: str) -> None:
    async with scripted("one", admin_key="boss") as up:
        answer = await up.client.post("/start_profile", json=body, headers=KEY)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_stopping_what_was_not_started_is_refused(scripted: Any) -> None:
    async with scripted("one", admin_key="boss") as up:
        answer = await up.client.post("/stop_profile", headers=KEY)
        assert answer.status_code == 400
        assert "no profile is being recorded" in answer.json()["error"]["message"]
