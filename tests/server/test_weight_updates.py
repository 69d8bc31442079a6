"""Updates of weights over HTTP: what is wrong is the caller's 400; an engine without weights is a 503 that heals."""

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.process import EngineProcess
from benthic.engine.supervisor import RestartPolicy
from benthic.models.transformer import Transformer
from benthic.server.build import build_service
from benthic.server.config import ServerConfig
from tests.engine.asking import until
from tests.engine.fakes import fake_spec
from tests.server.conftest import CONTEXT_LEN, TINY, Live, build, running

pytestmark = pytest.mark.anyio
ROUTE = "/update_weights_from_disk"
KEY = {"authorization": "Bearer boss"}
TEXT = {"prompt": "x", "max_tokens": 2}


async def test_a_path_without_weights_is_refused_by_its_field(model: Transformer, tmp_path: Path) -> None:
    engine = Engine(model, EngineConfig(max_num_seqs=4, max_model_len=CONTEXT_LEN))
    async with running(build(engine, ServerConfig(admin_key="boss")), engine) as up:
        (tmp_path / "empty").touch()
        for path in ("/tmp", "", "x" * 5000, "a\0b", "/dev/null", str(tmp_path), str(tmp_path / "empty"), "tiny"):
            response = await up.client.post(ROUTE, json={"model_path": path}, headers=KEY)
            assert (response.status_code, response.json()["error"]["param"]) == (400, "model_path"), response.text
        assert (await up.client.get("/health")).json() == {"status": "ok"}


async def post(client: httpx.AsyncClient, **body: Any) -> httpx.Response:
    return await client.post(ROUTE, json=body, headers=KEY)


async def test_weights_that_cannot_be_had_again_are_a_503_until_an_update_brings_others(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "weights").write_text("six")
    engine = EngineProcess(fake_spec(), restarts=RestartPolicy(first_wait_s=0.01))
    engine.start()
    service = build_service(engine, engine.wait_ready(60), TINY, name="tiny", config=ServerConfig(admin_key="boss"))
    with Live(service, engine) as up:
        assert (await post(up.client, model_path=str(folder), weight_version=6)).json()["weight_version"] == 6
        (folder / "weights").write_text("others")
        os.kill(engine.pid or 0, signal.SIGKILL)
        assert until(lambda: engine.state == "needs weights")
        health = await up.client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "needs weights"})
        refused = await up.client.post("/v1/completions", json=TEXT)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "needs_weights")
        wrong = await post(up.client, model_path=str(folder), weight_version=6)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "weight_version")
        assert (await post(up.client, model_path=str(folder))).json()["weight_version"] == 7
        assert until(lambda: engine.state == "running")
        assert (await up.client.get("/health")).status_code == 200
        assert (await up.client.post("/v1/completions", json=TEXT)).status_code == 200
