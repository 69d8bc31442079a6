"""Clients leave, servers fill up and shut down: every request still ends in one way, and nothing goes on unheard."""

import asyncio
import contextlib
import json
import threading
import time
from typing import Any

import pytest

from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "thinking": {"type": "disabled"}}
ENDLESS = {**ASK, "ignore_eos": True, "max_tokens": 400}
TEXT = {"model": "tiny", "prompt": "hi", "ignore_eos": True, "max_tokens": 400}


async def until(condition: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.01)
    return True


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), [(CHAT, ENDLESS), ("/v1/completions", TEXT)])
async def test_a_client_that_leaves_ends_its_sequences_within_a_second(
    live: Any, path: str, body: dict[str, Any], stream: bool
) -> None:
    with live("one two three", step_s=0.02) as up:
        task = asyncio.ensure_future(up.client.post(path, json={**body, "n": 2, "stream": stream}))
        assert await until(lambda: up.service.channel.num_open == 2, 5)
        await asyncio.sleep(0.1)
        task.cancel()
        assert await until(lambda: len(up.engine.cancelled) == 2 and not up.engine.has_work(), 1)
        assert set(up.engine.cancelled.values()) == {"cancelled"}
        assert up.service.channel.num_open == 0
        answer = await up.client.post(CHAT, json={**ASK, "max_tokens": 2})
        assert answer.status_code == 200


async def test_a_full_server_refuses_before_any_work_and_says_when_to_come_back(live: Any) -> None:
    with live("one two three", step_s=0.02, max_open_sequences=3) as up:
        task = asyncio.ensure_future(up.client.post(CHAT, json={**ENDLESS, "n": 2}))
        assert await until(lambda: up.service.channel.num_open == 2, 5)
        refused = await up.client.post(CHAT, json={**ENDLESS, "n": 2})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "server_overloaded"
        assert int(refused.headers["retry-after"]) >= 1
        assert int(refused.headers["retry-after-ms"]) >= 1
        accepted = await up.client.post(CHAT, json={**ASK, "max_tokens": 2})
        assert accepted.status_code == 200
        assert len(up.engine.requests) == 3
        task.cancel()


@pytest.mark.parametrize(("path", "body"), [(CHAT, ASK), ("/v1/completions", TEXT)])
async def test_more_answers_than_can_ever_be_open_are_a_mistake_and_no_overload(
    live: Any, path: str, body: dict[str, Any]
) -> None:
    with live("one" + EOS, max_open_sequences=3) as up:
        refused = await up.client.post(path, json={**body, "n": 4})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == "n"
        assert "at most 3" in refused.json()["error"]["message"]
        assert "retry-after" not in refused.headers
        assert (await up.client.post(path, json={**body, "n": 3, "max_tokens": 1})).status_code == 200


async def test_shutdown_lets_streams_finish_and_turns_new_requests_away(live: Any) -> None:
    with live(" ".join(["word"] * 40) + EOS, step_s=0.02) as up:
        task = asyncio.ensure_future(up.client.post(CHAT, json={**ASK, "stream": True}))
        assert await until(lambda: up.service.channel.num_open == 1, 5)
        up.server.stop()
        assert await until(lambda: up.service.channel.is_draining, 1)
        late = await up.client.post(CHAT, json=ASK)
        assert late.status_code == 503
        assert late.json()["error"]["code"] == "shutting_down"
        assert "retry-after" in late.headers
        assert (await up.client.get("/health")).status_code == 503
        text = (await task).text
        assert text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"stop"' in text
        up.thread.join(5)
        assert not up.thread.is_alive()


async def test_shutdown_lets_a_request_finish_that_scores_its_prompts_one_after_the_other(live: Any) -> None:
    with live("one two" + EOS, step_s=0.05) as up:
        body = {"model": "tiny", "prompt": [[5, 6], [6, 7], [7, 8], [8, 9]], "echo": True, "logprobs": 1}
        task = asyncio.ensure_future(up.client.post("/v1/completions", json=body))
        assert await until(lambda: len(up.engine.requests) == 2, 5)
        up.server.stop()
        answer = await task
        assert answer.status_code == 200, answer.text
        assert len(answer.json()["choices"]) == 4
        up.thread.join(5)
        assert not up.thread.is_alive()


READ = {
    CHAT: {"messages": ASK["messages"]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": ASK["messages"], "max_tokens": 9},
    "/v1/responses": {"input": "hi"},
    "/tokenize": {"prompt": "hi"},
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", READ)
async def test_a_client_that_leaves_while_its_text_is_read_never_reaches_the_engine(
    live: Any, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    gate, entered = threading.Event(), threading.Event()

    def slowly(*_: Any) -> Any:
        entered.set()
        gate.wait(20)
        raise AssertionError("nobody is there to hear this")

    body = {"model": "tiny", "stream": stream, **READ[path]}
    with live("one two") as up:
        for place in ("text.prompt.PromptEncoder", "server.service.Service", "text.tokenizer.Tokenizer"):
            monkeypatch.setattr(f"benthic.{place}.encode", slowly)
        task = asyncio.ensure_future(up.client.post(path, json=body))
        assert await until(entered.is_set, 5)
        task.cancel()
        assert await until(lambda: not up.server.server_state.connections, 5)
        assert await until(lambda: up.service.intake.held_bytes == 0 and not up.server.server_state.tasks, 1)
        gate.set()
        assert up.engine.requests == []
        assert up.service.channel.num_open == 0


async def test_a_stream_that_outlives_the_drain_ends_with_an_error_object(live: Any) -> None:
    with live("one two", step_s=0.02, drain_s=0.3) as up:
        task = asyncio.ensure_future(up.client.post(CHAT, json={**ENDLESS, "stream": True}))
        assert await until(lambda: up.service.channel.num_open == 1, 5)
        up.server.stop()
        text = (await task).text
        assert "[DONE]" not in text
        last = json.loads(text.rstrip().rsplit("\n\n", 1)[-1].removeprefix("data: "))
        assert last["error"]["code"] == "shutting_down"
        assert "cut off because the server is stopping" in last["error"]["message"]


@pytest.mark.parametrize(("path", "body"), [(CHAT, ENDLESS), ("/v1/completions", TEXT)])
async def test_a_second_stop_signal_ends_streams_with_an_error_object_and_the_server_soon(
    live: Any, path: str, body: dict[str, Any]
) -> None:
    with live("one two", step_s=0.02) as up:
        task = asyncio.ensure_future(up.client.post(path, json={**body, "stream": True}))
        assert await until(lambda: up.service.channel.num_open == 1, 5)
        up.server.stop()
        up.server.stop()
        text = (await task).text
        last = json.loads(text.rstrip().rsplit("\n\n", 1)[-1].removeprefix("data: "))
        assert "cut off because the server is stopping" in last["error"]["message"]
        assert await until(lambda: not up.thread.is_alive(), 5)


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/tokenize"])
async def test_a_body_that_stops_arriving_is_answered_and_its_connection_closed(live: Any, path: str) -> None:
    with live("a" + EOS, body_timeout_s=0.2) as up:
        host, port = up.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n".encode() + b'{"prompt": "')
        await writer.drain()
        answer = await asyncio.wait_for(reader.read(), 5)  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b'"code":"request_timeout"' in answer
        writer.close()
        assert (await up.client.post(CHAT, json={**ASK, "max_tokens": 1})).status_code == 200


@pytest.mark.parametrize(("path", "body"), [(CHAT, ENDLESS), ("/v1/completions", TEXT)])
async def test_a_failing_engine_ends_streams_with_one_error_object_and_answers_with_503(
    live: Any, path: str, body: dict[str, Any]
) -> None:
    with live("one two", step_s=0.02) as up:
        stream = asyncio.ensure_future(up.client.post(path, json={**body, "stream": True}))
        plain = asyncio.ensure_future(up.client.post(path, json=body))
        assert await until(lambda: up.service.channel.num_open == 2, 5)
        up.engine.failing = True
        text = (await stream).text
        assert text.count('"error":{') == 1
        assert "[DONE]" not in text
        assert '"finish_reason":"' not in text
        assert '"code":"engine_failed"' in text
        assert ((await plain).status_code, (await plain).headers["retry-after"]) == (503, "2")
        up.engine.failing = False
        assert (await up.client.post(CHAT, json={**ASK, "max_tokens": 2})).status_code == 200


async def test_a_silent_stream_shows_signs_of_life(live: Any) -> None:
    with live("one" + EOS, step_s=0.5, keep_alive_s=0.1) as up:
        text = (await up.client.post(CHAT, json={**ASK, "stream": True})).text
        assert text.count(": keep-alive\n\n") >= 2
        assert text.endswith("data: [DONE]\n\n")


async def test_a_body_beyond_the_limit_is_refused_announced_or_not(live: Any) -> None:
    with live("a" + EOS, max_body_bytes=1000) as up:
        body = json.dumps({**ASK, "user": "x" * 2000}).encode()

        async def pieces() -> Any:
            for start in range(0, len(body), 100):
                yield body[start : start + 100]

        for content in (body, pieces()):
            response = await up.client.post(CHAT, content=content)
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "request_too_large"
        assert (await up.client.post(CHAT, json={**ASK, "max_tokens": 1})).status_code == 200


GARBAGE = {
    "not http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    "endless header": b"GET / HTTP/1.1\r\nx: " + b"y" * 200_000,
    "bad length": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n{}",
    "bad chunk": b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "cut body": b'POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{"prompt": "',
    "odd path": b"GET /v1/models/%ff%00%2e%2e/%0d%0a HTTP/1.1\r\nhost: x\r\n\r\n",
    "odd header": b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer \xff\xfe\r\n\r\n",
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_garbage_on_a_connection_harms_nobody_else(live: Any, name: str) -> None:
    with live("a" + EOS, api_key="key") as up:
        host, port = up.url.removeprefix("http://").split(":")
        for leaves_at_once in (True, False):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(GARBAGE[name])
            with contextlib.suppress(OSError, TimeoutError):
                await writer.drain()
                if not leaves_at_once:
                    await asyncio.wait_for(reader.read(1000), 0.3)
            writer.close()
        answer = await up.client.post(CHAT, json={**ASK, "max_tokens": 1}, headers={"x-api-key": "key"})
        assert answer.status_code == 200
        assert up.service.channel.num_open == 0


async def test_a_hundred_answers_that_end_by_themselves_abort_nothing(live: Any) -> None:
    with live("one two" + EOS) as up:
        answers = await asyncio.gather(*(up.client.post(CHAT, json={**ASK, "stream": i % 2 == 1}) for i in range(100)))
        assert {answer.status_code for answer in answers} == {200}
        assert up.service.metrics.aborted._value.get() == 0
        assert up.engine.cancelled == {}


async def test_fifty_abandoned_streams_leave_room_for_the_next_request_at_once(live: Any) -> None:
    with live("one two three", step_s=0.01) as up:

        async def leave_after_the_first_frame() -> None:
            async with up.client.stream("POST", CHAT, json={**ENDLESS, "stream": True}) as response:
                await anext(aiter(response.aiter_lines()))

        await asyncio.gather(*(leave_after_the_first_frame() for _ in range(50)))
        began = time.monotonic()
        answer = await up.client.post(CHAT, json={**ASK, "max_tokens": 2})
        assert answer.status_code == 200
        assert time.monotonic() - began < 1
        assert await until(lambda: not up.engine.has_work() and up.service.channel.num_open == 0, 1)
        assert len(up.engine.cancelled) == 50


async def test_a_turn_after_an_abandoned_one_holds_the_history_it_was_sent_and_no_more(live: Any) -> None:
    with live("one two three", step_s=0.005) as up:
        history = [{"role": "user", "content": "hi"}]
        alone = (await up.client.post(CHAT, json={**ASK, "messages": history, "max_tokens": 1})).json()
        for _ in range(20):
            async with up.client.stream("POST", CHAT, json={**ENDLESS, "messages": history, "stream": True}) as stream:
                await anext(aiter(stream.aiter_lines()))
            turn = (await up.client.post(CHAT, json={**ASK, "messages": history, "max_tokens": 1})).json()
            assert turn["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
        assert await until(lambda: not up.engine.has_work(), 1)
