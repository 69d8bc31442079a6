"""Long bodies: they cost their own sender time, and nobody else; and what cannot fit is refused before it costs any."""

import asyncio
import threading
import time
from typing import Any

import pytest

from benthic.server.errors import ApiError
from benthic.server.intake import LONG, Intake, Lane, is_long
from benthic.text.tokenizer import EOS, Tokenizer

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"


def test_a_body_is_long_by_its_characters_and_items_together() -> None:
    assert not is_long({"prompt": "x" * (LONG - 10)})
    assert is_long({"prompt": "x" * LONG})
    assert is_long({"messages": [{"content": "x" * (LONG // 2)}] * 2})
    assert is_long({"prompt": [7] * LONG})
    assert is_long(b"x" * (LONG + 1))
    assert not is_long({"n": 1, "stop": None})


def test_bodies_have_room_together_and_the_first_one_always() -> None:
    intake = Intake(100)
    intake.take(150)
    with pytest.raises(ApiError) as caught:
        intake.take(1)
    assert caught.value.status == 429
    assert "retry-after" in caught.value.headers()
    intake.give_back(150)
    intake.take(60)
    intake.take(40)
    assert intake.held_bytes == 100


async def test_a_short_request_does_not_wait_behind_long_ones() -> None:
    intake = Intake(1 << 20)
    gate = threading.Event()
    long = [asyncio.ensure_future(intake.run("x" * (LONG + 1), gate.wait, 20)) for _ in range(8)]
    await asyncio.sleep(0.01)
    assert await asyncio.wait_for(intake.run("short", len, "short"), 5) == 5
    assert not any(task.done() for task in long)
    gate.set()
    assert await asyncio.gather(*long) == [True] * 8
    intake.close()


async def test_work_that_nobody_waits_for_any_more_is_not_begun() -> None:
    lane, gate, done = Lane("test", 1), threading.Event(), []
    first = asyncio.ensure_future(lane.run(lambda: gate.wait(20)))
    second = asyncio.ensure_future(lane.run(lambda: done.append(1)))
    await asyncio.sleep(0.05)
    second.cancel()
    await asyncio.sleep(0)
    gate.set()
    await first
    assert await lane.run(lambda: "alive") == "alive"
    assert done == []
    with pytest.raises(ZeroDivisionError):
        await lane.run(lambda: 1 // 0)
    lane.close()


def test_other_threads_run_while_a_long_text_is_tokenised(tokenizer: Tokenizer) -> None:
    gaps, is_over = [0.0], threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not is_over.is_set():
            time.sleep(0.005)
            gaps.append(time.perf_counter() - last)
            last = time.perf_counter()

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    ids = tokenizer.encode("7" * 300_000)
    took = time.perf_counter() - began
    is_over.set()
    watcher.join()
    assert len(ids) == 300_000
    assert max(gaps) < max(took / 2, 0.2)


def test_long_and_short_texts_are_tokenised_alike(tokenizer: Tokenizer) -> None:
    text = "Grüße, 世界 🌊 </think> 12345\n\n  def f(x):\n" * 200
    assert tokenizer.encode(text) == list(tokenizer._plain.encode(text, add_special_tokens=False).ids)
    assert 0 < tokenizer.least_tokens(text) <= len(tokenizer.encode(text))
    assert tokenizer.least_tokens("") == 0


async def test_what_cannot_fit_is_refused_without_being_tokenised(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    huge = "7" * 2_000_000
    async with scripted("a" + EOS) as up:
        monkeypatch.setattr(Tokenizer, "encode", lambda *_: pytest.fail("it was tokenised"))
        for path, body, param in (
            (CHAT, {"messages": [{"role": "user", "content": huge}]}, "messages"),
            ("/v1/responses", {"input": huge}, "input"),
            ("/v1/messages", {"messages": [{"role": "user", "content": huge}], "max_tokens": 1}, "messages"),
            ("/v1/completions", {"prompt": huge}, "prompt"),
        ):
            answer = await up.post(path, model="tiny", **body)
            assert answer.status_code == 400, answer.text[:300]
            error = answer.json()["error"]
            assert (error["code"], error["param"]) == ("context_length_exceeded", param)
            assert "at least" in error["message"]
            assert up.service.intake.held_bytes == 0
