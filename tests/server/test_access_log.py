"""Every request leaves one line: who asked what, how it ended, tokens and times; never a word of what was said."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from benthic.telemetry import REQUESTS, TextFormatter
from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio
SECRET = "xyzzy plugh"
CHAT = {"messages": [{"role": "user", "content": SECRET}]}


class Lines(logging.Handler):
    """Keeps the figures of each record and what it looks like."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def figures(self) -> list[dict[str, Any]]:
        return [record.__dict__["benthic_figures"] for record in self.records]

    @property
    def text(self) -> str:
        return "\n".join(map(TextFormatter().format, self.records))


@pytest.fixture
def lines() -> Iterator[Lines]:
    logger, handler = logging.getLogger(REQUESTS), Lines()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_leaves_its_tokens_and_times_and_nothing_that_was_said(
    scripted: Any, lines: Lines, stream: bool
) -> None:
    async with scripted("frobnicate" + EOS, api_key="client secret") as up:
        up.engine.cached_len = 2
        headers = {"authorization": "Bearer client secret"}
        answer = await up.client.post("/v1/chat/completions", json={**CHAT, "stream": stream}, headers=headers)
        assert answer.status_code == 200
    [line] = lines.figures
    assert (line["method"], line["route"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert (line["sequences"], line["cached_tokens"], line["ended"]) == (1, 2, "stop")
    assert line["generated_tokens"] == len(up.service.tokenizer.encode_markup("frobnicate" + EOS))
    assert line["prompt_tokens"] == len(up.engine.requests[0].prompt_ids)
    assert 0 <= line["first_token_s"] <= line["duration_s"]
    assert f'"id":"{line["reply_id"]}"' in answer.text.replace(" ", "")
    for word in (*SECRET.split(), "frobnicate", "client secret"):
        assert word not in lines.text


async def test_a_prompt_that_choices_share_counts_once_and_several_prompts_each(scripted: Any, lines: Lines) -> None:
    async with scripted("one" + EOS) as up:
        await up.json("/v1/completions", prompt=["ab", "abc"], n=3)
    [line] = lines.figures
    lengths = {len(request.prompt_ids) for request in up.engine.requests if request.fork_of is None}
    assert (line["sequences"], line["prompt_tokens"]) == (6, sum(lengths))


async def test_refusals_have_lines_as_well(scripted: Any, lines: Lines) -> None:
    async with scripted("one", api_key="client") as up:
        await up.client.post("/v1/chat/completions", json=CHAT)
        await up.client.get("/no/such%0Aroute", headers={"x-api-key": "client"})
        await up.client.post("/v1/completions", content=b"{", headers={"x-api-key": "client"})
    assert [line["status"] for line in lines.figures] == [401, 404, 400]
    assert all("prompt_tokens" not in line for line in lines.figures)
    assert len(lines.text.splitlines()) == 3


async def test_probes_are_worth_a_line_when_they_go_otherwise_than_before(scripted: Any, lines: Lines) -> None:
    async with scripted("one") as up:
        for path in ("/health", "/ready", "/metrics"):
            await up.client.get(path)
        assert lines.records == []
        up.service.channel.is_draining = True
        for _ in range(3):
            await up.client.get("/ready")
        up.service.channel.is_draining = False
        for _ in range(3):
            await up.client.get("/ready")
    assert [line["status"] for line in lines.figures] == [503, 200]


async def test_a_client_that_leaves_in_the_middle_is_told_apart(live: Any, lines: Lines) -> None:
    with live("one two three", step_s=0.01) as up:
        body = {"prompt": "hi", "ignore_eos": True, "max_tokens": 400, "stream": True}
        async with up.client.stream("POST", "/v1/completions", json=body) as answer:
            await anext(answer.aiter_lines())
        for _ in range(300):
            if lines.records:
                break
            await asyncio.sleep(0.01)
    [line] = lines.figures
    assert line["status"] == 499
    assert 0 < line["generated_tokens"] < 400
