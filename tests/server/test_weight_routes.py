"""A trainer's look at the weights, and memory lent to it, over HTTP."""

from pathlib import Path
from typing import Any

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.weights import weights_checksum
from benthic.models.transformer import Transformer
from benthic.server.config import ServerConfig
from tests.server.conftest import build, running

pytestmark = pytest.mark.anyio
KEY = {"authorization": "Bearer boss"}


async def test_weights_are_compared_and_read_and_memory_is_lent_in_a_pause(model: Transformer, tmp_path: Path) -> None:
    engine = Engine(model, EngineConfig(max_num_seqs=8, max_model_len=512))
    async with running(build(engine, ServerConfig(admin_key="boss")), engine) as up:

        async def post(path: str, **body: Any) -> Any:
            return await up.client.post(path, json=body, headers=KEY)

        state = model.state_dict()
        right = (await post("/weights_checker", action="compare", checksum=weights_checksum(state))).json()
        assert (right["is_equal"], right["weight_version"]) == (True, 0)
        assert (await post("/weights_checker", action="compare", checksum="other")).json()["is_equal"] is False
        name = next(iter(state))
        read = (await post("/get_weights_by_name", name=name, truncate_size=3)).json()
        assert read["values"] == state[name].reshape(-1)[:3].tolist()
        assert (await post("/get_weights_by_name", name="no.such")).json()["error"]["param"] == "name"

        early = await post("/release_memory_occupation")
        assert (early.status_code, "pause it" in early.json()["error"]["message"]) == (400, True)
        before = await up.json("/v1/completions", prompt=[5, 6, 7], max_tokens=4, temperature=0)
        await post("/pause_generation", mode="retract")
        assert (await post("/release_memory_occupation", tags=["kv_cache"])).status_code == 200
        assert (await post("/continue_generation")).status_code == 400
        assert (await post("/resume_memory_occupation")).status_code == 200
        assert (await post("/continue_generation")).status_code == 200
        after = await up.json("/v1/completions", prompt=[5, 6, 7], max_tokens=4, temperature=0)
        assert after["choices"] == before["choices"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/weights_checker", {"action": "reset"}, "action"),
        ("/weights_checker", {"action": "compare"}, "checksum"),
        ("/weights_checker", {"checksum": "a"}, "checksum"),
        ("/get_weights_by_name", {}, "name"),
        ("/release_memory_occupation", {"tags": ["weights"]}, "tags"),
    ],
)
async def test_what_cannot_be_meant_is_refused_by_its_field(
    scripted: Any, path: str, body: dict[str, Any], param: str
) -> None:
    async with scripted("one", admin_key="boss") as up:
        answer = await up.client.post(path, json=body, headers=KEY)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
