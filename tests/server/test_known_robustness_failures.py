"""Failures of kind robustness that other servers were reported for, where they are the server's to prevent.

B171 and B172 (padded and mixed batches) are in tests/engine/test_row_passes.py, B173 (identical prompts) in
tests/exactness/test_schedules.py, B174 (warm-up) in tests/engine/test_start_report.py, B177 (a killed engine) in
tests/engine/test_process.py and test_standby.py, tests/server/test_recovery.py and test_chaos.py.
"""

import json
import time
from dataclasses import replace
from typing import Any

import openai
import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.errors import ConfigError
from benthic.models.transformer import Transformer
from benthic.server.config import ServerConfig
from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio
ASK = [{"role": "user", "content": "hi"}]

EMPTY: dict[str, tuple[str, dict[str, Any], int]] = {
    "no text": ("/v1/completions", {"prompt": ""}, 400),
    "a list of no text": ("/v1/completions", {"prompt": [""]}, 400),
    "one text of several empty": ("/v1/completions", {"prompt": ["hi", ""]}, 400),
    "no prompts": ("/v1/completions", {"prompt": []}, 400),
    "a list of no ids": ("/v1/completions", {"prompt": [[]]}, 400),
    "a blank": ("/v1/completions", {"prompt": " "}, 200),
    "a null": ("/v1/completions", {"prompt": None}, 400),
    "nothing": ("/v1/completions", {}, 400),
    "no messages": ("/v1/chat/completions", {"messages": []}, 400),
    "null messages": ("/v1/chat/completions", {"messages": None}, 400),
    "an empty message": ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}]}, 200),
    "a message of no parts": ("/v1/chat/completions", {"messages": [{"role": "user", "content": []}]}, 200),
    "no messages for Messages": ("/v1/messages", {"messages": [], "max_tokens": 2}, 400),
    "no input": ("/v1/responses", {"input": []}, 400),
}


@pytest.mark.parametrize("name", EMPTY)
async def test_b176_an_empty_prompt_is_refused_or_answered_and_the_next_one_is_served(served: Any, name: str) -> None:
    path, body, status = EMPTY[name]
    answer = await served.post(path, model="tiny", **{"max_tokens": 2} | body if path != "/v1/responses" else body)
    assert answer.status_code == status, answer.text
    if status == 400:
        assert answer.json()["error"]["message"]
    assert served.service.channel.num_open == 0
    await served.json("/v1/completions", model="tiny", prompt=[5], max_tokens=1)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("num_tokens", [0, 3])
async def test_b178_a_failing_engine_ends_a_stream_with_an_error_that_the_official_client_raises(
    live: Any, path: str, num_tokens: int
) -> None:
    with live("one two three four five six" + EOS, step_s=0.05) as up:
        up.engine.failing = num_tokens == 0
        client = openai.OpenAI(base_url=up.url + "/v1", api_key="none", max_retries=0)
        began = time.monotonic()
        with pytest.raises(openai.APIError) as caught:  # noqa: PT012 - the stream is made and read inside
            if path == "/v1/completions":
                stream: Any = client.completions.create(model="tiny", prompt="hi", stream=True)
            else:
                stream = client.chat.completions.create(model="tiny", messages=ASK, stream=True)  # type: ignore[arg-type]
            for count, _ in enumerate(stream):
                up.engine.failing |= count >= num_tokens
        assert caught.value.code == "engine_failed"
        assert time.monotonic() - began < 10
        client.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_b178_a_fault_in_reading_the_tokens_ends_a_stream_with_one_error_and_closes_it(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async with scripted("one two three" + EOS) as up:
        place = "text.stream.ReplyStream" if path != "/v1/completions" else "server.text_choice.TextChoice"

        def broken(*_: Any, **__: Any) -> Any:
            raise ValueError("a fault of ours")

        monkeypatch.setattr(f"benthic.{place}.push", broken)
        body: dict[str, Any] = {"prompt": "hi"} if path == "/v1/completions" else {"messages": ASK, "max_tokens": 5}
        body = {"input": "hi"} if path == "/v1/responses" else body
        answer = await up.post(path, model="tiny", **body, stream=True)
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        failed = [event for event in events if event.get("error") or event.get("type") in ("error", "response.failed")]
        assert len(failed) >= 1
        assert failed[-1] is events[-1]
        assert "a fault of ours" not in answer.text
        assert "[DONE]" not in answer.text
        assert up.service.channel.num_open == 0
        plain = await up.post(path, model="tiny", **body)
        assert plain.status_code == 500
        monkeypatch.undo()
        assert (await up.post(path, model="tiny", **body)).status_code == 200


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"drafter": "mtp"}, "0 MTP blocks"),
        ({"cache_bytes": 1000}, "cache_bytes"),
        ({"max_batched_tokens": 8, "max_num_seqs": 8}, "must be > max_num_seqs"),
        ({"retention_interval": 100}, "multiple of page_size"),
        ({"page_size": 100}, "page_size"),
        ({"max_model_len": 10**9}, "max_position_embeddings"),
        ({"workspace_bytes": 1}, "workspace_bytes"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_b179_options_that_cannot_work_together_are_refused_at_the_start(
    model: Transformer, options: dict[str, Any], advice: str
) -> None:
    config = replace(model.config, num_nextn_predict_layers=0) if "drafter" in options else model.config
    with pytest.raises(ConfigError) as caught:
        Engine(type(model)(config) if config is not model.config else model, EngineConfig(**options))
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"max_buffered_bytes": 10, "max_body_bytes": 20},
        {"api_key": ""},
        {"admin_key": ""},
        {"max_connections": 0},
        {"write_timeout_s": 0.0},
        {"port": 70_000},
    ],
)
def test_b179_options_of_the_server_that_cannot_work_are_refused_at_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerConfig(**options)
    assert next(iter(options)) in str(caught.value)
