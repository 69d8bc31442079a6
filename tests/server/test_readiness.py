"""Whether a server is ready, how loaded it is, what it says of its start, and that it shows no secret."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.start_report import Feature, StartReport, features_of
from benthic.models.transformer import Transformer
from benthic.server.config import ServerConfig
from benthic.server.summary import features_of_server
from tests.server.conftest import build, running

pytestmark = pytest.mark.anyio
KEY = {"authorization": "Bearer boss"}


async def test_a_server_is_ready_once_its_engine_is_and_not_while_it_is_paused_or_draining(
    model: Transformer,
) -> None:
    engine = Engine(model, EngineConfig(max_num_seqs=8, max_model_len=512))
    async with running(build(engine, ServerConfig(admin_key="boss")), engine) as up:
        assert (await up.client.get("/ready")).json()["status"] == "ready"
        await up.client.post("/pause_generation", headers=KEY)
        paused = await up.client.get("/ready")
        assert (paused.status_code, paused.json()["status"]) == (503, "paused")
        assert paused.headers["retry-after"] == "1"
        assert (await up.client.get("/health")).status_code == 200
        await up.client.post("/continue_generation", headers=KEY)
        assert (await up.client.head("/ready")).status_code == 200
        up.service.channel.is_draining = True
        drained = await up.client.get("/ready")
        assert (drained.status_code, drained.json()["status"]) == (503, "draining")


async def test_readiness_is_asked_without_a_key_and_load_with_the_clients(scripted: Any) -> None:
    async with scripted("one", api_key="client") as up:
        assert (await up.client.get("/ready")).status_code == 200
        assert (await up.client.get("/v1/loads")).status_code == 401
        assert (await up.client.get("/v1/loads", headers={"x-api-key": "client"})).status_code == 200


async def test_the_load_tells_a_router_how_much_room_is_left(scripted: Any) -> None:
    async with scripted("one two three", step_s=0.02, max_open_sequences=4) as up:
        stream = asyncio.ensure_future(up.post("/v1/completions", prompt="hi", ignore_eos=True, max_tokens=20, n=2))
        while up.service.channel.num_open < 2:
            await asyncio.sleep(0.005)
        [load] = (await up.client.get("/v1/loads")).json()["loads"]
        assert (load["num_open_sequences"], load["max_open_sequences"], load["state"]) == (2, 4, "ready")
        await stream
        [load] = (await up.client.get("/v1/loads")).json()["loads"]
        assert load["num_open_sequences"] == 0


async def test_the_figures_of_the_pools_are_there_before_the_first_request(model: Transformer) -> None:
    engine = Engine(model, EngineConfig(max_num_seqs=8, max_model_len=512))
    async with running(build(engine, ServerConfig()), engine) as up:
        [load] = (await up.client.get("/v1/loads")).json()["loads"]
        assert load["max_total_num_tokens"] >= 512


async def test_server_info_shows_how_it_was_started_and_no_key(scripted: Any) -> None:
    async with scripted("one", api_key="client secret", admin_key="boss", drain_s=7.0) as up:
        report = StartReport(device="cpu", features=(Feature("drafts", False, "none"),), warmed=("a prompt",))
        object.__setattr__(up.service, "facts", replace(up.service.facts, start=report))
        shown = await up.client.get("/server_info", headers=KEY)
        assert "client secret" not in shown.text and "boss" not in shown.text
        info = shown.json()
        assert info["server"]["drain_s"] == 7.0
        assert info["start"]["features"][0] == {"name": "drafts", "is_on": False, "reason": "none"}
        assert (await up.client.get("/ready")).json()["warmed"] == ["a prompt"]


async def test_abort_is_another_name_of_abort_request(scripted: Any) -> None:
    async with scripted("one", admin_key="boss") as up:
        answer = await up.client.post("/abort", json={"abort_all": True}, headers=KEY)
        assert answer.json() == {"success": True, "num_aborted": 0}
        assert (await up.client.post("/abort", json={"abort_all": True})).status_code == 401


@pytest.mark.parametrize(
    ("settings", "name", "is_on", "reason"),
    [
        ({}, "prefix cache", True, "pages of 128 tokens, windows kept by retention boundaries"),
        ({"prefix_cache": False}, "prefix cache", False, "engine.prefix_cache is false"),
        ({}, "drafts", False, "the checkpoint has 1 prediction block"),
        ({"drafter": "mtp", "draft_len": 2}, "drafts", True, "by 1 prediction block(s), at most 2 tokens ahead"),
        ({"drafter": "ngram"}, "drafts", True, "the text's own repetitions"),
        ({}, "captured passes", False, "the device is cpu"),
        ({"keep_routes": True}, "routes", True, "engine.keep_routes is true"),
    ],
)
def test_b190_the_summary_has_one_line_a_feature_with_its_state_and_the_reason(
    model: Transformer, settings: dict[str, Any], name: str, is_on: bool, reason: str
) -> None:
    features = features_of(model, EngineConfig(**settings), 0)
    names = [feature.name for feature in features]
    assert len(names) == len(set(names))
    [found] = [feature for feature in features if feature.name == name]
    assert found.is_on is is_on
    assert reason in found.reason
    assert found.line().startswith(f"{name:<18}{'on ' if is_on else 'off'}  ")


@pytest.mark.parametrize(
    ("config", "name", "is_on", "reason"),
    [
        ({}, "conversations", True, "messages"),
        ({}, "client keys", False, "everybody on this machine may send requests"),
        ({"host": "0.0.0.0"}, "client keys", False, "whatever network reaches 0.0.0.0"),
        ({"api_key": "a", "api_keys": ("b",)}, "client keys", True, "2 set"),
        ({}, "control routes", False, "server.admin_key is not set"),
        ({"admin_key": "boss"}, "control routes", True, "server.admin_key is set"),
        ({"cors_origins": ("https://a.example",)}, "other origins", True, "https://a.example"),
        ({"engine_in_process": True}, "standby", False, "takes the server along"),
        ({"standby": False}, "standby", False, "server.standby is false"),
    ],
)
async def test_b190_the_summary_says_what_is_offered_and_to_whom(
    scripted: Any, config: dict[str, Any], name: str, is_on: bool, reason: str
) -> None:
    async with scripted("one", **config) as up:
        features = features_of_server(up.service)
    names = [feature.name for feature in features]
    assert len(names) == len(set(names))
    [found] = [feature for feature in features if feature.name == name]
    assert found.is_on is is_on
    assert reason in found.reason
    assert "boss" not in found.line()
