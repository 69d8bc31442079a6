"""Failures of other servers in reading requests and wording answers (kind api), each by its id."""

import asyncio
import json
import math
from typing import Any

import pytest

from benthic.text import PromptEncoder, Tokenizer
from benthic.text.tokenizer import DSML, END_THINK, EOS
from tests.server.merged import CHAT, MESSAGES, RESPONSES, ROUTES, both_ways, parse_frames
from tests.server.scripted_engine import Script

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
ASK = [{"role": "user", "content": "hi"}]
ON, OFF = {"type": "enabled"}, {"type": "disabled"}
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
INVOKE = f'<{DSML}invoke name="f">\n<{DSML}parameter name="a" string="true">x</{DSML}parameter>\n</{DSML}invoke>\n'
OPEN, CLOSE = f"<{DSML}tool_calls>\n", f"</{DSML}tool_calls>"
CALL = OPEN + INVOKE + CLOSE
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASK, "thinking": OFF},
    COMPLETIONS: {"prompt": "hi"},
    RESPONSES: {"input": "hi"},
    MESSAGES: {"messages": ASK, "max_tokens": 5},
}
LIMITS = {CHAT: "max_tokens", COMPLETIONS: "max_tokens", RESPONSES: "max_output_tokens", MESSAGES: "max_tokens"}


@pytest.mark.parametrize("path", BODIES)
async def test_b86_numbers_of_another_type_are_read_or_refused_and_the_server_lives(scripted: Any, path: str) -> None:
    """Every value in every field: test_hostile_fields.py."""
    async with scripted("a" + EOS) as up:
        for name in ("n", "temperature", "top_p", "seed", LIMITS[path]):
            for value in ("1.0", '"1"', "true", "null", "[]", "1e400", "NaN", "-Infinity", "1" * 400):
                raw = json.dumps(BODIES[path])[:-1] + f', "{name}": {value}}}'
                response = await up.client.post(path, content=raw)
                assert response.status_code in (200, 400), (name, value, response.text)
        assert (await up.client.get("/health")).status_code == 200
        assert up.service.channel.num_open == 0


RANGES: list[tuple[str, list[Any], list[Any]]] = [
    ("temperature", [0, 0.5, 1, 2], [-3, -0.001, 2.001, "1", True, [], 1e300]),
    ("top_p", [0.001, 0.5, 1], [0, -1, 7, 1.001, "1", {}]),
    ("top_k", [-1, 0, 1, 20], [-2, 1.5, "1", []]),
    ("min_p", [0, 1], [-0.1, 1.1, "x"]),
    ("presence_penalty", [-2, 2], [-2.1, 3, "x"]),
    ("seed", [0, -1, 2**63 - 1], [1.5, "1", 2**63]),
]


@pytest.mark.parametrize(("name", "good", "bad"), RANGES, ids=[name for name, *_ in RANGES])
async def test_b87_sampling_values_are_checked_at_the_door(
    scripted: Any, name: str, good: list[Any], bad: list[Any]
) -> None:
    async with scripted("a" + EOS) as up:
        for path in (CHAT, COMPLETIONS):
            for value in good:
                assert (await up.post(path, **BODIES[path], **{name: value})).status_code == 200, value
            num_asked = len(up.engine.requests)
            for value in bad:
                response = await up.post(path, **BODIES[path], **{name: value})
                error = response.json()["error"]
                assert (response.status_code, error["param"], error["type"]) == (400, name, "invalid_request_error")
                assert set(error) == {"message", "type", "param", "code"}
            assert len(up.engine.requests) == num_asked


@pytest.mark.parametrize("path", BODIES)
async def test_b88_a_limit_of_zero_is_no_absent_one(scripted: Any, path: str) -> None:
    name = LIMITS[path]
    async with scripted(Script([300, 301], is_endless=True), context_len=128) as up:
        for stream in (False, True):
            for value, status in ((0, 400), (-1, 400), (1, 200), (10**6, 200 if path == MESSAGES else 400)):
                if path == COMPLETIONS and value == 0:
                    continue  # there it means that nothing is generated
                response = await up.post(path, **{**BODIES[path], name: value, "stream": stream})
                assert response.status_code == status, (value, response.text)
                if status == 400:
                    assert name in response.text
                elif value == 1:
                    assert up.engine.requests[-1].params.max_tokens == 1
        scored = await up.json(COMPLETIONS, prompt="hi", max_tokens=0, echo=True, logprobs=1)
        assert (scored["usage"]["completion_tokens"], scored["choices"][0]["text"]) == (0, "hi")
        if path == COMPLETIONS:
            assert (await up.json(path, prompt="hi"))["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    "markup", ["hello" + EOS, f"r{END_THINK}hello" + EOS, CALL + EOS], ids=["text", "think", "call"]
)
async def test_b89_b90_usage_is_one_event_of_its_own_and_each_choice_ends_once(scripted: Any, markup: str) -> None:
    async with scripted(markup) as up:
        thinking = ON if END_THINK in markup else OFF
        for n in (1, 3):
            for limit in (100, 2):
                body = {"messages": ASK, "thinking": thinking, "tools": [TOOL], "n": n, "max_tokens": limit}
                plain = await up.json(CHAT, **body)
                for wanted in (True, False, None):
                    options = {} if wanted is None else {"stream_options": {"include_usage": wanted}}
                    frames = [
                        data for _, data in parse_frames((await up.post(CHAT, **body, **options, stream=True)).text)
                    ]
                    with_usage = [frame for frame in frames if frame.get("usage")]
                    assert len(with_usage) == (wanted is True)
                    if wanted:
                        assert frames[-1] is with_usage[0]
                        assert (frames[-1]["choices"], frames[-1]["usage"]) == ([], plain["usage"])
                    ends = [
                        choice["index"] for frame in frames for choice in frame["choices"] if choice["finish_reason"]
                    ]
                    assert sorted(ends) == list(range(n))


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}], ids=str)
async def test_b91_a_call_ends_with_its_own_reason_streamed_or_not(scripted: Any, choice: Any) -> None:
    """The last id is the end token, which comes alone."""

    def answer(request: Any) -> str:
        opened = tokenizer.decode(request.prompt_ids).endswith(OPEN)
        return (CALL.removeprefix(OPEN) if opened else CALL) + EOS

    async with scripted(answer) as up:
        tokenizer = up.service.tokenizer
        said = await both_ways(up, "chat", messages=ASK, tools=[TOOL], tool_choice=choice, thinking=OFF)
        assert (said.finish, said.calls, said.content) == ("tool_calls", [("f", '{"a": "x"}')], "")


@pytest.mark.parametrize("protocol", ROUTES)
async def test_b92_a_call_that_was_cut_is_never_a_complete_one(scripted: Any, protocol: str) -> None:
    tools = {
        "chat": [TOOL],
        "responses": [{"type": "function", **TOOL["function"]}],  # type: ignore[dict-item]
        "messages": [{"name": "f", "input_schema": PARAMETERS}],
    }
    path = ROUTES[protocol]
    off = {"reasoning": {"effort": "none"}} if protocol == "responses" else {"thinking": OFF}
    async with scripted("hi\n\n" + CALL) as up:
        num_tokens = len(up.service.tokenizer.encode_markup("hi\n\n" + CALL))
        for limit in range(1, num_tokens, 4):
            body = {**BODIES[path], **off, "tools": tools[protocol], LIMITS[path]: limit}
            said = await both_ways(up, protocol, **body)
            assert said.finish in ("length", "max_tokens", "incomplete")
            assert DSML not in said.content + said.reasoning
            whole = [arguments for _, arguments in said.calls if arguments == '{"a": "x"}']
            assert len(said.errors) == len(said.calls) - len(whole)
        none = {"type": "none"} if protocol == "messages" else "none"
        said = await both_ways(up, protocol, **{**body, "tool_choice": none, LIMITS[path]: 200})
        assert (said.calls, said.content.strip()) == ([], "hi")


async def test_b93_a_developer_is_a_system_and_an_unknown_role_is_named(scripted: Any) -> None:
    async with scripted("a" + EOS) as up:
        for role in ("developer", "system"):
            await up.json(CHAT, messages=[{"role": role, "content": "Be brief."}, *ASK], thinking=OFF)
        first, second = up.engine.requests
        assert first.prompt_ids == second.prompt_ids
        response = await up.post(CHAT, messages=[{"role": "foo", "content": "x"}])
        assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[0].role")


async def test_b95_blocks_of_messages_hold_their_own_deltas_and_cached_tokens_count_once(scripted: Any) -> None:
    """The order of blocks and their deltas is checked where the stream is read (merged.py)."""
    body = {"messages": ASK, "max_tokens": 300, "thinking": ON, "tools": [{"name": "f", "input_schema": PARAMETERS}]}
    async with scripted(f"so{END_THINK}I ask\n\n{OPEN}{INVOKE}{INVOKE}{CLOSE}{EOS}") as up:
        up.engine.cached_len = 3
        said = await both_ways(up, "messages", **body)
        assert (said.reasoning, said.content, len(said.calls), said.finish) == ("so", "I ask", 2, "tool_use")
        prompt_len = len(up.engine.requests[-1].prompt_ids)
        assert said.usage["cache_read_input_tokens"] == 3
        assert said.usage["input_tokens"] + said.usage["cache_read_input_tokens"] == prompt_len
        up.engine.ends = ("no room", "capacity")
        response = await up.post(MESSAGES, **body)
        assert (response.status_code, response.json()["type"]) == (429, "error")
        assert response.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize(
    "reasoning", [{}, {"reasoning_content": ""}, {"reasoning_content": None}, {"reasoning_content": "so"}]
)
async def test_b96_the_turn_after_a_call_needs_no_reasoning(scripted: Any, reasoning: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [*ASK, {"role": "assistant", "tool_calls": [call], **reasoning}]
    history.append({"role": "tool", "tool_call_id": "c", "content": "1"})
    used = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    thought = reasoning.get("reasoning_content")
    blocks = [used] if thought is None else [{"type": "thinking", "thinking": thought, "signature": ""}, used]
    turns = [*ASK, {"role": "assistant", "content": blocks}]
    turns.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]})
    async with scripted(f"r{END_THINK}x" + EOS) as up:
        for thinking in (ON, OFF):
            await up.json(CHAT, messages=history, tools=[TOOL], thinking=thinking)
            tool = {"name": "f", "input_schema": PARAMETERS}
            await up.json(MESSAGES, messages=turns, tools=[tool], thinking=thinking, max_tokens=50)
            chat, messages = up.engine.requests[-2:]
            assert chat.prompt_ids == messages.prompt_ids


@pytest.mark.parametrize("path", BODIES)
async def test_b97_a_silent_stream_shows_life(live: Any, path: str) -> None:
    with live(Script([300, 301, 1], delays_s={1: 0.8}), keep_alive_s=0.1) as up:
        loop, gaps = asyncio.get_running_loop(), []
        async with up.client.stream("POST", path, json={**BODIES[path], "stream": True}) as response:
            last = loop.time()
            async for _ in response.aiter_raw():
                gaps.append(loop.time() - last)
                last = loop.time()
        assert len(gaps) > 4
        assert max(gaps) < 0.6


async def test_b98_log_probabilities_are_those_of_the_model(served: Any) -> None:
    """As the same model scores the same tokens when they are a prompt."""
    for temperature in (0, 1):
        body = {"prompt": [300, 301, 302], "max_tokens": 6, "temperature": temperature, "seed": 3, "ignore_eos": True}
        answer = await served.json(COMPLETIONS, **body, logprobs=20, return_token_ids=True)
        choice = answer["choices"][0]
        scored = await served.json(
            COMPLETIONS, prompt=[*body["prompt"], *choice["token_ids"]], max_tokens=0, echo=True, logprobs=20
        )
        known = scored["choices"][0]["logprobs"]["token_logprobs"][3:]
        assert choice["logprobs"]["token_logprobs"] == pytest.approx(known, abs=1e-4)
        for chosen, top in zip(known, choice["logprobs"]["top_logprobs"], strict=True):
            values = list(top.values())[:20]
            assert values == sorted(values, reverse=True)
            assert sum(map(math.exp, values)) <= 1 + 1e-6
            assert -30 < chosen < 0
            assert temperature or chosen == pytest.approx(max(values), abs=1e-6)


async def test_b99_the_context_ends_where_it_is_said_to_end(scripted: Any) -> None:
    limit = 64
    async with scripted("a" + EOS, context_len=limit) as up:
        for length in range(limit - 2, limit + 3):
            for max_tokens in (None, 1, 5):
                body = {"prompt": [300] * length} | ({} if max_tokens is None else {"max_tokens": max_tokens})
                response = await up.post(COMPLETIONS, **body)
                fits = length + (max_tokens or 1) <= limit
                assert (response.status_code == 200) == (fits and (max_tokens is not None or length < limit)), (
                    length,
                    body,
                )
                if response.status_code != 200:
                    error = response.json()["error"]
                    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
                    assert str(limit) in error["message"]
                    assert str(length) in error["message"]
        assert up.service.channel.num_open == 0


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, None),
        ({"max_tokens": 7}, 7),
        ({"max_completion_tokens": 9}, 9),
        ({"max_tokens": 8, "max_completion_tokens": 8}, 8),
    ],
)
async def test_b100_the_limit_holds_for_reasoning_and_answer_together(
    scripted: Any, limits: dict[str, int], expected: int | None
) -> None:
    async with scripted(Script([300, 301], is_endless=True), context_len=100) as up:
        said = await both_ways(up, "chat", messages=ASK, thinking=ON, **limits)
        prompt_len = len(up.engine.requests[-1].prompt_ids)
        assert said.usage["completion_tokens"] == (expected or 100 - prompt_len)
        assert said.finish == "length"
        both = await up.post(CHAT, messages=ASK, max_tokens=3, max_completion_tokens=4)
        assert (both.status_code, both.json()["error"]["param"]) == (400, "max_completion_tokens")


def test_b101_reasoning_items_are_the_reasoning_of_their_turn(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, context_len=4096)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "x"}'}}
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
        {"role": "assistant", "content": "two", "reasoning_content": "then"},
        {"role": "user", "content": "three"},
    ]
    items = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": "x"}'},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "reasoning", "id": "rs_2", "summary": [], "content": [{"type": "reasoning_text", "text": "then"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"role": "user", "content": "three"},
    ]
    chat = encoder.encode("chat", {"messages": messages, "tools": [TOOL], "thinking": ON})
    tool = {"type": "function", "name": "f", "parameters": PARAMETERS}
    responses = encoder.encode("responses", {"input": items, "tools": [tool], "reasoning": {"enabled": True}})
    assert tokenizer.decode(chat.token_ids) == tokenizer.decode(responses.token_ids)


EMPTY: list[Any] = ["", [], [{"type": "text", "text": ""}]]


async def test_b102_empty_content_is_content(scripted: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    async with scripted("a" + EOS) as up:
        for role in ("system", "user", "assistant"):
            for content in EMPTY:
                await up.json(CHAT, messages=[{"role": role, "content": content}, *ASK], thinking=OFF)
        for content in [*EMPTY, None]:
            turn = {"role": "assistant", "content": content, "tool_calls": [call]}
            for result in EMPTY:
                messages = [*ASK, turn, {"role": "tool", "tool_call_id": "c", "content": result}]
                await up.json(CHAT, messages=messages, tools=[TOOL], thinking=OFF)
        assert (await up.post(CHAT, messages=[{"role": "assistant", "content": None}, *ASK])).status_code == 400


def test_b95_the_official_client_reads_a_stream_with_broken_arguments_to_its_end(live: Any) -> None:
    anthropic = pytest.importorskip("anthropic")
    broken = INVOKE.replace(' string="true">x', ' string="false">no json')
    tool = {"name": "f", "input_schema": PARAMETERS}
    with live(f"hi\n\n{OPEN}{broken}{INVOKE}{CLOSE}{EOS}") as up:
        client = anthropic.Anthropic(base_url=up.url, api_key="none", max_retries=0)
        asked: Any = {"messages": ASK, "max_tokens": 100, "tools": [tool], "thinking": {"type": "disabled"}}
        with client.messages.stream(model="tiny", **asked) as stream:
            message = stream.get_final_message()
    text, first, second = message.content
    assert (text.text, first.input, second.input) == ("hi", {}, {"a": "x"})
    assert message.stop_reason == "end_turn"
