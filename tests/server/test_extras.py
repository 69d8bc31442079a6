"""Rules of sampling reach the engine, and what was asked for beside the text comes back, streamed or not."""

import base64
from typing import Any

import numpy as np
import pytest

from benthic.errors import RequestError
from benthic.server.protocols import open_answer
from benthic.text.tokenizer import END_THINK, EOS, Tokenizer

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
PLAIN = "/v1/completions"
ASK = [{"role": "user", "content": "hi"}]
OFF = {"type": "disabled"}
RULES = {
    "frequency_penalty": 0.5,
    "presence_penalty": -0.25,
    "repetition_penalty": 1.5,
    "logit_bias": {"9": 2, "4": -100},
    "min_tokens": 2,
    "ignore_eos": True,
    "max_tokens": 4,
}
HOW = {"priority": 7, "cache_salt": "tenant"}
ALL = {"prompt_logprobs": 0, "return_token_ids": True, "return_routed_experts": True, "return_report": True}


@pytest.mark.parametrize(("path", "body"), [(CHAT, {"messages": ASK, "thinking": OFF}), (PLAIN, {"prompt": "hi"})])
async def test_rules_priority_and_salt_reach_every_request(scripted: Any, path: str, body: dict[str, Any]) -> None:
    async with scripted("a b c" + EOS) as up:
        await up.json(path, **body, **RULES, **HOW, n=2)
        for request in up.engine.requests:
            params = request.params
            assert (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (0.5, -0.25, 1.5)
            assert params.logit_bias == ((4, -100.0), (9, 2.0))
            assert (params.min_tokens, params.ignore_eos) == (2, True)
            assert (request.priority, request.cache_salt) == (7, "tenant")
        first, second = up.engine.requests
        assert (first.fork_of, second.fork_of) == (None, first.request_id)


@pytest.mark.parametrize("fields", [{"thinking_budget": 5}, {"thinking": {"type": "enabled", "budget_tokens": 5}}])
async def test_a_thinking_budget_reaches_the_engine_with_the_token_that_ends_the_thinking(
    scripted: Any, tokenizer: Tokenizer, fields: dict[str, Any]
) -> None:
    async with scripted("so" + END_THINK + "yes" + EOS) as up:
        await up.json(CHAT, messages=ASK, **{"thinking": {"type": "enabled"}, **fields})
        params = up.engine.requests[0].params
        assert (params.thinking_budget, params.reasoning_end_id) == (5, tokenizer.token_id(END_THINK))


async def test_a_completion_holds_what_was_asked_for(scripted: Any, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode("one two"), tokenizer.encode("three")]
    ids = tokenizer.encode_markup("a b" + EOS)
    async with scripted("a b" + EOS) as up:
        up.engine.cached_len = 1
        up.engine.take_content("newer weights", 3)
        answer = await up.json(PLAIN, prompt=prompts, n=2, **ALL)
        assert [choice["token_ids"] for choice in answer["choices"]] == [ids] * 4
        for index, choice in enumerate(answer["choices"]):
            assert len(read_array(choice["routed_experts"])) == len(prompts[index // 2]) + len(ids) - 1
            assert ("prompt_token_ids" in choice) == ("prompt_logprobs" in choice) == (index % 2 == 0)
        assert answer["choices"][2]["prompt_token_ids"] == prompts[1]
        scores = answer["choices"][0]["prompt_logprobs"]
        assert scores[0] is None
        assert [list(score) for score in scores[1:]] == [[str(token)] for token in prompts[0][1:]]
        assert scores[1][str(prompts[0][1])] == {"logprob": -0.5, "decoded_token": tokenizer.decode(prompts[0][1:2])}
        reports = answer["benthic"]["reports"]
        assert [report["prompt_len"] for report in reports] == [len(prompts[0])] * 2 + [len(prompts[1])] * 2
        assert reports[0]["weight_versions"] == [3]
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2


async def test_a_streamed_completion_says_the_same_in_pieces(scripted: Any) -> None:
    async with scripted("a b" + EOS) as up:
        plain = await up.json(PLAIN, prompt="one two", **ALL)
        frames = await up.frames(PLAIN, prompt="one two", **ALL, stream_options={"include_usage": True})
        choices = [choice for frame in frames for choice in frame["choices"]]
        assert sum((choice["token_ids"] for choice in choices), []) == plain["choices"][0]["token_ids"]
        for name in ("prompt_token_ids", "prompt_logprobs", "routed_experts"):
            assert choices[-1][name] == plain["choices"][0][name]
            assert all(name not in choice for choice in choices[:-1])
        assert frames[-1]["benthic"] == plain["benthic"]
        assert frames[-1]["usage"] == plain["usage"]


async def test_nothing_is_added_where_nothing_was_asked_for(scripted: Any) -> None:
    async with scripted("a b" + EOS) as up:
        for path, body in ((PLAIN, {"prompt": "x"}), (CHAT, {"messages": ASK, "thinking": OFF})):
            answer = await up.json(path, **body)
            text = str(answer) + str(await up.frames(path, **body))
            assert not any(name in text for name in ("benthic", "token_ids", "routed_experts", "prompt_logprobs"))


async def test_a_chat_reply_holds_what_was_asked_for_streamed_or_not(scripted: Any, tokenizer: Tokenizer) -> None:
    body = {"messages": ASK, "thinking": OFF, "n": 2, **ALL}
    ids = tokenizer.encode_markup("a b" + EOS)
    async with scripted("a b" + EOS) as up:
        plain = await up.json(CHAT, **body)
        assert plain["prompt_token_ids"] == list(up.engine.requests[0].prompt_ids)
        assert len(plain["prompt_logprobs"]) == len(plain["prompt_token_ids"])
        assert [choice["token_ids"] for choice in plain["choices"]] == [ids, ids]
        assert len(plain["benthic"]["reports"]) == 2
        [*_, last] = await up.frames(CHAT, **body)
        assert [choice["delta"] for choice in last["choices"]] == [{}, {}]
        for name in ("prompt_token_ids", "prompt_logprobs", "benthic"):
            assert last[name] == plain[name]
        for name in ("token_ids", "routed_experts"):
            assert [choice[name] for choice in last["choices"]] == [choice[name] for choice in plain["choices"]]


@pytest.mark.parametrize(
    ("protocol", "body"),
    [("responses", {"input": "hi"}), ("messages", {"messages": ASK, "max_tokens": 9})],
)
async def test_the_other_protocols_have_extras_at_the_top_and_none_in_streams(
    scripted: Any, protocol: Any, body: dict[str, Any]
) -> None:
    async with scripted("a" + EOS) as up:
        answer = await open_answer(up.service, protocol, {**body, "return_token_ids": True, "return_report": True})
        reply = await answer.whole()
        answer.close()
        assert reply["token_ids"] and reply["prompt_token_ids"] and reply["benthic"]["reports"]
        with pytest.raises(RequestError, match="return_report is true; it must be absent in a stream of"):
            await open_answer(up.service, protocol, {**body, "return_report": True, "stream": True})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reply", ["a b" + EOS, "a STOP b" + EOS])
async def test_the_cached_length_of_a_reply_is_the_engines(scripted: Any, reply: str, stream: bool) -> None:
    async with scripted(reply, step_s=0.01) as up:
        up.engine.cached_len = 4
        body = {"messages": ASK, "thinking": OFF, "stop": ["STOP"]}
        if stream:
            usage = (await up.frames(CHAT, **body, stream_options={"include_usage": True}))[-1]["usage"]
        else:
            usage = (await up.json(CHAT, **body))["usage"]
        assert usage["prompt_cache_hit_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 4
        assert usage["prompt_cache_miss_tokens"] == usage["prompt_tokens"] - 4


async def test_a_prompt_is_scored_without_echo_and_without_an_answer(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        answer = await up.json(PLAIN, prompt=[5, 6, 7], max_tokens=0, prompt_logprobs=2)
        [choice] = answer["choices"]
        assert (choice["text"], choice["finish_reason"], len(choice["prompt_logprobs"])) == ("", "length", 3)
        assert answer["usage"]["completion_tokens"] == 0
        assert up.engine.requests[0].params.max_tokens == 0
        assert (await up.post(PLAIN, prompt="x", max_tokens=0, prompt_logprobs=2, n=2)).status_code == 400


async def test_routes_that_the_engine_does_not_keep_are_refused(served: Any) -> None:
    response = await served.post(PLAIN, prompt="x", return_routed_experts=True)
    assert response.status_code == 400
    assert "this engine keeps no routes" in response.json()["error"]["message"]


async def test_a_stop_string_is_shown_where_that_is_asked_for(scripted: Any) -> None:
    async with scripted("one two three four" + EOS, step_s=0.01) as up:
        body = {"prompt": "count", "stop": ["ree f"], "max_tokens": 50, "include_stop_str_in_output": True}
        assert (await up.json(PLAIN, **body))["choices"][0]["text"] == "one two three f"


def read_array(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    raw = base64.b64decode(value["data"])
    return np.frombuffer(raw, np.dtype(value["dtype"]).newbyteorder("<")).reshape(value["shape"])
