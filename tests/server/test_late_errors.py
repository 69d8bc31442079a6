"""What the engine says of a request after the server has taken it reaches the client as the status that it deserves."""

import json
from typing import Any

import pytest

from benthic.engine.request import Request
from benthic.errors import CapacityError, EngineError, RequestError

pytestmark = pytest.mark.anyio
PATHS = {
    "/v1/completions": {"model": "tiny", "prompt": [5, 6], "max_tokens": 3},
    "/v1/chat/completions": {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3},
}
REFUSALS = [
    (RequestError("the prompt is bad"), 400, "invalid_value", "the prompt is bad"),
    (CapacityError("no room"), 429, "server_overloaded", "no room"),
]
ENDS = [
    ("timeout", 504, "request_timeout"),
    ("numbers", 500, "numbers_not_finite"),
    ("engine", 503, "engine_failed"),
    ("capacity", 429, "server_overloaded"),
    ("request", 400, "invalid_value"),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("error", "status", "code", "message"), REFUSALS, ids=["request", "capacity"])
async def test_a_refusal_by_the_engine_is_a_refusal_by_the_server(
    scripted: Any, path: str, error: Any, status: int, code: str, message: str
) -> None:
    async with scripted("one two three") as up:
        up.engine.refuses = error
        answer = await up.post(path, **PATHS[path])
        assert answer.status_code == status, answer.text
        assert answer.json()["error"]["code"] == code
        assert answer.json()["error"]["message"] == message
        assert ("retry-after" in answer.headers) == (status == 429)
        up.engine.refuses = None
        assert (await up.post(path, **PATHS[path])).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("kind", "status", "code"), ENDS, ids=[kind for kind, *_ in ENDS])
async def test_an_error_on_the_way_has_a_status_and_a_stream_the_same_code(
    scripted: Any, path: str, kind: str, status: int, code: str
) -> None:
    async with scripted("one two three") as up:
        up.engine.ends = ("it did not go well", kind)
        plain = await up.post(path, **PATHS[path])
        assert (plain.status_code, plain.json()["error"]["code"]) == (status, code)
        assert ("retry-after" in plain.headers) == (status in (429, 503))
        stream = await up.post(path, **PATHS[path], stream=True)
        assert stream.status_code == 200  # it was on its way already
        assert "[DONE]" not in stream.text
        last = json.loads(stream.text.strip().split("\n\n")[-1].rpartition("data: ")[2])
        error = last["error"]
        assert error["code"] == code
        assert "it did not go well" in error["message"]


async def test_scores_that_the_engine_refuses_are_refused(scripted: Any) -> None:
    async with scripted("one") as up:
        up.engine.refuses = CapacityError("no room")
        body = {"model": "tiny", "prompt": [5, 6], "max_tokens": 0, "echo": True, "logprobs": 1}
        assert (await up.post("/v1/completions", **body)).status_code == 429


async def test_chat_tells_right_and_wrong_drafts_summed_over_choices_streamed_or_not(scripted: Any) -> None:
    path, body = "/v1/chat/completions", {**PATHS["/v1/chat/completions"], "n": 2}
    async with scripted("one two three") as up:
        up.engine.drafts = (5, 3)
        usage = (await up.json(path, **body))["usage"]
        frames = await up.frames(path, **body, stream_options={"include_usage": True})
        up.engine.drafts = (0, 0)
        silent = (await up.json(path, **body))["usage"]
    details = usage["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (6, 4)
    assert frames[-1]["usage"]["completion_tokens_details"] == details
    assert "accepted_prediction_tokens" not in (silent.get("completion_tokens_details") or {})


@pytest.mark.parametrize("is_alive", [True, False])
async def test_an_engine_that_fails_just_when_it_is_asked_is_not_there_and_nothing_stays_open(
    scripted: Any, monkeypatch: pytest.MonkeyPatch, is_alive: bool
) -> None:
    async with scripted("one two three") as up:
        real, engine, taken = up.service.channel.engine.add, up.service.channel.engine, []

        def add(request: Request) -> None:
            if taken:
                if not is_alive:
                    monkeypatch.setattr(type(engine), "is_alive", False)
                raise EngineError("the engine has failed and is not started again")
            taken.append(request)
            real(request)

        monkeypatch.setattr(engine, "add", add)
        answer = await up.post("/v1/completions", **PATHS["/v1/completions"], n=2)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
        assert "retry-after" in answer.headers
        assert up.service.channel.num_open == 0
        monkeypatch.undo()
