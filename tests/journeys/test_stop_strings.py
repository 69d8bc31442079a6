"""An answer that a stop string ended is the same whoever guesses, whoever asks, however far the engine went."""

import asyncio
import dataclasses
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest

from benthic import LLM, AsyncLLM, SamplingParams
from benthic.engine.config import EngineConfig
from benthic.engine.cut import AnswerCut
from benthic.engine.engine import Engine
from benthic.engine.messages import EngineFacts
from benthic.engine.request import FinalOutput, RequestReport, RowExtras, TokenEvent, TokenLogprobs
from benthic.engine.worker import EngineWorker
from benthic.llm import CompletionOutput
from benthic.server.app import create_app
from benthic.server.build import build_service
from benthic.server.config import ServerConfig
from benthic.text.tokenizer import Tokenizer
from tests.journeys.small_model import ASSETS, build_model

MODEL = build_model().freeze()
TOKENIZER = Tokenizer(ASSETS)
PROMPT = TOKENIZER.encode("What is 347 + 285? Say it twice, say it twice.")
KEEP = {"keep_routes": True, "keep_picks": True, "max_num_seqs": 4}
WIDE = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=2, return_routes=True, return_picks=True)
ENGINES: dict[str, dict[str, Any]] = {
    "none": {},
    "mtp": {"drafter": "mtp", "draft_len": 6, "draft_adaptive": False},
    "ngram": {"drafter": "ngram", "draft_len": 8},
    "overlap": {"overlap_steps": 1},
}


def whole() -> CompletionOutput:
    with LLM(MODEL, tokenizer=TOKENIZER, **KEEP) as llm:
        return llm.generate([PROMPT], WIDE)[0].outputs[0]


FREE = whole()
"""The answer without a stop string."""
STOP = FREE.text[len(FREE.text) // 3 : len(FREE.text) // 3 + 3]
NUM_TOKENS = next(n for n in range(1, 31) if STOP in TOKENIZER.decode(FREE.token_ids[:n]))
STOPPING = replace(WIDE, stop=(STOP,))


def check(answer: CompletionOutput) -> None:
    """It is the free answer up to the token that completed the stop string, in all that belongs to tokens."""
    rows = len(PROMPT) + NUM_TOKENS - 1
    assert (answer.finish_reason, answer.stop_reason) == ("stop", STOP)
    assert answer.text == FREE.text[: FREE.text.index(STOP)]
    assert answer.token_ids == FREE.token_ids[:NUM_TOKENS]
    assert FREE.logprobs is not None and FREE.top_logprobs is not None
    assert answer.logprobs == FREE.logprobs[:NUM_TOKENS]
    assert answer.top_logprobs == FREE.top_logprobs[:NUM_TOKENS]
    for name, dtype in (("routes", np.uint16), ("picks", np.int32)):
        found, free = getattr(answer, name), getattr(FREE, name)
        assert found.dtype == dtype
        assert np.array_equal(found, free[:rows]), name
    assert answer.report is not None
    assert answer.report.accepted < NUM_TOKENS


@pytest.mark.parametrize("engine", ENGINES)
def test_llm_cuts_the_answer_where_the_stop_string_is_complete(engine: str) -> None:
    with LLM(MODEL, tokenizer=TOKENIZER, **KEEP, **ENGINES[engine]) as llm:
        for _ in range(2):  # cold and from the cache
            check(llm.generate([PROMPT], STOPPING)[0].outputs[0])


@pytest.mark.parametrize("engine", ["none", "mtp"])
def test_async_llm_says_the_same_however_far_the_engine_went(engine: str) -> None:
    async def ask() -> None:
        async with AsyncLLM(MODEL, tokenizer=TOKENIZER, **KEEP, **ENGINES[engine]) as llm:
            output = await llm.generate(PROMPT, STOPPING)
            check(output.outputs[0])
            deltas = [delta async for delta in llm.stream(PROMPT, STOPPING)]
            assert [i for delta in deltas for i in delta.token_ids] == FREE.token_ids[:NUM_TOKENS]

    asyncio.run(ask())


@pytest.mark.parametrize("engine", ["none", "mtp"])
def test_completions_and_their_usage_say_the_same(engine: str) -> None:
    body = {
        "prompt": PROMPT, "max_tokens": 30, "temperature": 0, "ignore_eos": True, "stop": STOP,
        "return_token_ids": True, "return_routed_experts": True, "return_picks": True, "return_report": True,
    }  # fmt: skip
    [answer] = asyncio.run(post(engine, "/v1/completions", body))
    [choice] = answer["choices"]
    rows = len(PROMPT) + NUM_TOKENS - 1
    assert choice["token_ids"] == FREE.token_ids[:NUM_TOKENS]
    assert answer["usage"]["completion_tokens"] == NUM_TOKENS
    assert choice["routed_experts"]["shape"][0] == choice["picks"]["shape"][0] == rows
    assert (choice["routed_experts"]["dtype"], choice["picks"]["dtype"]) == ("uint16", "int32")
    assert answer["benthic"]["reports"][0]["accepted"] < NUM_TOKENS


def test_a_chat_reply_is_cut_alike_with_any_drafter() -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "say it twice, say it twice"}], "max_tokens": 30, "temperature": 0,
        "return_token_ids": True, "thinking": {"type": "disabled"}, "ignore_eos": True,
    }  # fmt: skip
    [free] = asyncio.run(post("none", "/v1/chat/completions", body))
    text = free["choices"][0]["message"]["content"]
    stop = text[len(text) // 3 : len(text) // 3 + 3]
    answers = [
        asyncio.run(post(engine, "/v1/chat/completions", {**body, "stop": [stop]}))[0] for engine in ("none", "mtp")
    ]
    for answer in answers:
        [choice] = answer["choices"]
        assert choice["finish_reason"] == "stop"
        assert len(choice["token_ids"]) == answer["usage"]["completion_tokens"]
        assert choice["token_ids"] == free["choices"][0]["token_ids"][: len(choice["token_ids"])]
        assert choice["message"]["content"] == text[: text.index(stop)]
    assert answers[0]["choices"] == answers[1]["choices"]


def test_a_cut_leaves_out_versions_drafts_and_errors_of_later_tokens() -> None:
    cut = AnswerCut()
    for index, (version, drafted, accepted) in enumerate([(1, 0, 0), (1, 3, 1), (2, 3, 2)]):
        cut.take(TokenEvent("a", index, 5 + index, None, version, drafted=drafted, accepted=accepted))
    scores = tuple(TokenLogprobs(-float(i), ()) for i in range(5))
    report = RequestReport(prompt_len=2, drafted=9, accepted=7, weight_versions=(1, 2, 3))
    final = FinalOutput(
        request_id="a", token_ids=(5, 6, 7, 8, 9), logprobs=scores,
        finish_reason="error", error="it died", error_kind="engine",
        stop_token_id=9, prompt_len=2, report=report, extras=RowExtras(np.arange(6), None),
    )  # fmt: skip
    found = cut.apply(final)
    assert (found.token_ids, found.logprobs) == ((5, 6, 7), scores[:3])
    assert (found.finish_reason, found.error, found.error_kind, found.stop_token_id) == ("stop", None, None, None)
    assert found.report == dataclasses.replace(report, drafted=3, accepted=2, weight_versions=(1, 2))
    assert found.extras is not None and found.extras.routes is not None
    assert found.extras.routes.tolist() == [0, 1, 2, 3]


async def post(engine: str, path: str, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers of a server in this process."""
    config = EngineConfig(**KEEP, **ENGINES[engine])  # type: ignore[arg-type]
    built = Engine(MODEL, config)
    facts = EngineFacts(built.max_model_len, TOKENIZER.vocab_size, config, str(ASSETS))
    service = build_service(EngineWorker(built), facts, ASSETS, name="tiny", config=ServerConfig())
    app = create_app(service)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client,
    ):
        answers = [await client.post(path, json={"model": "tiny", **body}) for body in bodies]
    assert all(answer.status_code == 200 for answer in answers), [answer.text for answer in answers]
    return [answer.json() for answer in answers]
