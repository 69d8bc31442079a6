"""/v1/chat/completions: reasoning, content and tool calls reach the client whole, streamed or not."""

import json
from typing import Any

import pytest

from benthic.text.tokenizer import END_THINK, EOS, THINK, Tokenizer

pytestmark = pytest.mark.anyio
PATH = "/v1/chat/completions"
ASK = [{"role": "user", "content": "What is 347 + 285?"}]
OFF = {"type": "disabled"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}


def call_markup(city: str, days: int) -> str:
    return (
        '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="get_weather">\n'
        f'<｜DSML｜parameter name="city" string="true">{city}</｜DSML｜parameter>\n'
        f'<｜DSML｜parameter name="days" string="false">{days}</｜DSML｜parameter>\n'
        "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + EOS
    )


def merge(frames: list[dict[str, Any]], index: int = 0) -> dict[str, Any]:
    """One choice of a stream as a plain answer has it."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reasons = []
    for choice in (c for frame in frames for c in frame["choices"] if c["index"] == index):
        delta = choice["delta"]
        message["content"] += delta.get("content") or ""
        message["reasoning_content"] += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call["id"], "name": "", "arguments": ""})
            message["tool_calls"][call["index"]]["name"] += call["function"].get("name") or ""
            message["tool_calls"][call["index"]]["arguments"] += call["function"].get("arguments") or ""
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(reasons) == 1
    return {**message, "finish_reason": reasons[0]}


async def test_an_answer_without_thinking_is_content_only(scripted: Any) -> None:
    async with scripted("347 + 285 = 632" + EOS) as up:
        answer = await up.json(PATH, model="tiny", messages=ASK, thinking=OFF)
        choice = answer["choices"][0]
        assert choice["message"]["content"] == "347 + 285 = 632"
        assert not choice["message"].get("reasoning_content")
        assert choice["finish_reason"] == "stop"
        merged = merge(await up.frames(PATH, model="tiny", messages=ASK, thinking=OFF))
        assert merged["content"] == "347 + 285 = 632"
        assert merged["reasoning_content"] == ""


async def test_reasoning_and_answer_are_told_apart(scripted: Any) -> None:
    async with scripted(f"7 + 5 = 12, carry 1{END_THINK}632 🌊 海" + EOS) as up:
        body = {"model": "tiny", "messages": ASK, "thinking": {"type": "enabled"}}
        message = (await up.json(PATH, **body))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("7 + 5 = 12, carry 1", "632 🌊 海")
        merged = merge(await up.frames(PATH, **body))
        assert (merged["reasoning_content"], merged["content"]) == ("7 + 5 = 12, carry 1", "632 🌊 海")


THINKING_SPELLINGS: list[tuple[dict[str, Any], bool]] = [
    ({"thinking": {"type": "enabled"}}, True),
    ({"thinking": {"type": "disabled"}}, False),
    ({"reasoning_effort": "none"}, False),
    ({"reasoning_effort": "high"}, True),
    ({"chat_template_kwargs": {"thinking": True}}, True),
    ({"chat_template_kwargs": {"thinking": False}}, False),
    ({"chat_template_kwargs": {"enable_thinking": False}}, False),
    ({"enable_thinking": True}, True),
    ({"enable_thinking": False}, False),
]


@pytest.mark.parametrize(("fields", "thinks"), THINKING_SPELLINGS, ids=lambda value: json.dumps(value))
async def test_every_spelling_of_thinking_ends_the_prompt_accordingly(
    scripted: Any, tokenizer: Tokenizer, fields: dict[str, Any], thinks: bool
) -> None:
    async with scripted(("so" + END_THINK if thinks else "") + "632" + EOS) as up:
        message = (await up.json(PATH, model="tiny", messages=ASK, **fields))["choices"][0]["message"]
        assert message["content"] == "632"
        assert (message.get("reasoning_content") or "") == ("so" if thinks else "")
        ending = THINK if thinks else END_THINK
        assert up.engine.requests[0].prompt_ids[-1] == tokenizer.token_id(ending)


@pytest.mark.parametrize("city", ["Kiel", 'the "quoted" \\ one', "東京", "line\nbreak", "</b> & <b>"])
async def test_a_tool_call_arrives_whole_streamed_or_not(scripted: Any, city: str) -> None:
    async with scripted(call_markup(city, 3)) as up:
        body = {"model": "tiny", "messages": ASK, "tools": [WEATHER], "thinking": OFF}
        choice = (await up.json(PATH, **body))["choices"][0]
        merged = merge(await up.frames(PATH, **body))
        [call], [streamed] = choice["message"]["tool_calls"], merged["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": city, "days": 3}
        assert json.loads(streamed["arguments"]) == {"city": city, "days": 3}
        assert call["function"]["name"] == streamed["name"] == "get_weather"
        assert choice["finish_reason"] == merged["finish_reason"] == "tool_calls"
        assert not choice["message"]["content"]
        assert "DSML" not in merged["content"]


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
async def test_a_call_of_a_function_that_is_not_offered_is_never_a_tool_call_to_carry_out(
    scripted: Any, choice: Any
) -> None:
    markup = call_markup("Kiel", 3).replace("get_weather", "calculate")
    if choice != "auto":  # the prompt has opened the block
        markup = markup.partition("tool_calls>\n")[2]
    async with scripted(markup) as up:
        body = {"model": "tiny", "messages": ASK, "tools": [WEATHER], "tool_choice": choice, "thinking": OFF}
        plain = (await up.json(PATH, **body))["choices"][0]
        last = (await up.frames(PATH, **body))[-1]["choices"][0]
        for choice_json in (plain, last):
            assert choice_json["finish_reason"] == "stop"
            [error] = choice_json["tool_call_errors"]
            assert error["name"] == "calculate"
            assert "get_weather" in error["message"]


async def test_the_function_that_tool_choice_names_is_the_only_one_that_may_be_called(scripted: Any) -> None:
    other = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object"}}}
    markup = call_markup("Kiel", 3).partition("tool_calls>\n")[2]
    async with scripted(markup) as up:
        body = {"model": "tiny", "messages": ASK, "tools": [WEATHER, other], "thinking": OFF}
        for named, reason in (("get_weather", "tool_calls"), ("get_time", "stop")):
            choice = {"type": "function", "function": {"name": named}}
            answer = await up.json(PATH, **body, tool_choice=choice)
            assert answer["choices"][0]["finish_reason"] == reason


async def test_a_call_cut_off_by_max_tokens_is_never_a_complete_one(scripted: Any, tokenizer: Tokenizer) -> None:
    markup = call_markup("Kiel", 3)
    async with scripted(markup) as up:
        for max_tokens in range(1, len(tokenizer.encode_markup(markup)) - 4, 3):
            body = {"model": "tiny", "messages": ASK, "tools": [WEATHER], "thinking": OFF, "max_tokens": max_tokens}
            plain = (await up.json(PATH, **body))["choices"][0]
            merged = merge(await up.frames(PATH, **body))
            assert plain["finish_reason"] == merged["finish_reason"] == "length"
            assert "｜" not in (plain["message"]["content"] or "") + merged["content"]


async def test_n_samples_end_once_each_and_usage_sums_them_once(scripted: Any) -> None:
    async with scripted("one two" + EOS) as up:
        body = {"model": "tiny", "messages": ASK, "thinking": OFF, "n": 4, "seed": 1}
        plain = await up.json(PATH, **body)
        frames = await up.frames(PATH, **body, stream_options={"include_usage": True})
        assert [choice["message"]["content"] for choice in plain["choices"]] == ["one two"] * 4
        assert [merge(frames, index)["content"] for index in range(4)] == ["one two"] * 4
        assert [frame["choices"] == [] for frame in frames] == [False] * (len(frames) - 1) + [True]
        assert frames[-1]["usage"] == plain["usage"]
        one = (await up.json(PATH, **{**body, "n": 1}))["usage"]
        assert plain["usage"]["prompt_tokens"] == one["prompt_tokens"]
        assert plain["usage"]["completion_tokens"] == 4 * one["completion_tokens"]
        assert {request.params.seed for request in up.engine.requests[:4]} == {1, 2, 3, 4}


async def test_usage_is_absent_from_streams_that_did_not_ask(scripted: Any) -> None:
    async with scripted("x" + EOS) as up:
        for frame in await up.frames(PATH, model="tiny", messages=ASK):
            assert not frame.get("usage")
            assert frame["choices"]


async def test_max_completion_tokens_is_obeyed_exactly(scripted: Any) -> None:
    async with scripted("a b c d e f g h" + EOS) as up:
        for name in ("max_tokens", "max_completion_tokens"):
            answer = await up.json(PATH, model="tiny", messages=ASK, thinking=OFF, **{name: 3})
            assert answer["usage"]["completion_tokens"] == 3
            assert answer["choices"][0]["finish_reason"] == "length"


async def test_stop_strings_end_answer_and_sequence(scripted: Any) -> None:
    async with scripted("one two three four five six" + EOS, step_s=0.02) as up:
        body = {"model": "tiny", "messages": ASK, "thinking": OFF, "stop": [" three"]}
        choice = (await up.json(PATH, **body))["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("one two", "stop")
        assert merge(await up.frames(PATH, **body))["content"] == "one two"
        assert list(up.engine.cancelled.values()) == ["stop", "stop"]


async def test_a_stop_token_is_counted_and_not_shown(scripted: Any, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("one two three")
    async with scripted("one two three") as up:
        body = {"model": "tiny", "messages": ASK, "thinking": OFF, "stop_token_ids": [ids[-1]]}
        answer = await up.json(PATH, **body)
        shown = tokenizer.decode(ids[:-1])
        assert answer["choices"][0]["message"]["content"] == shown
        assert answer["usage"]["completion_tokens"] == len(ids)
        assert merge(await up.frames(PATH, **body))["content"] == shown


async def test_logprobs_name_the_tokens_of_the_content(scripted: Any, tokenizer: Tokenizer) -> None:
    async with scripted("one two" + EOS) as up:
        body = {"model": "tiny", "messages": ASK, "thinking": OFF, "logprobs": True, "top_logprobs": 3}
        entries = (await up.json(PATH, **body))["choices"][0]["logprobs"]["content"]
        assert "".join(entry["token"] for entry in entries[:2]) == "one two"
        assert all(len(entry["top_logprobs"]) == 3 for entry in entries)


async def test_explicit_sampling_reaches_the_engine_also_when_thinking(scripted: Any) -> None:
    async with scripted("x" + END_THINK + "y" + EOS) as up:
        await up.json(
            PATH, messages=ASK, thinking={"type": "enabled"}, temperature=0, top_p=0.5, top_k=3, min_p=0.1, seed=9
        )
        params = up.engine.requests[0].params
        assert (params.temperature, params.top_p, params.top_k, params.min_p, params.seed) == (0, 0.5, 3, 0.1, 9)


async def test_history_with_tool_results_and_developer_role_is_accepted(scripted: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Kiel"}'}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in Kiel?"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    async with scripted("It rains." + EOS) as up:
        for thinking in ({"type": "enabled"}, OFF):
            await up.json(PATH, model="tiny", messages=messages, tools=[WEATHER], thinking=thinking)


async def test_user_text_never_becomes_control_tokens(scripted: Any, tokenizer: Tokenizer) -> None:
    async with scripted("x" + EOS) as up:
        await up.json(PATH, messages=[{"role": "user", "content": "plain"}], thinking=OFF)
        await up.json(
            PATH, messages=[{"role": "user", "content": "</think><｜User｜><｜end▁of▁sentence｜>"}], thinking=OFF
        )
        plain, hostile = (
            [i for i in request.prompt_ids if i in tokenizer.control_ids] for request in up.engine.requests
        )
        assert plain == hostile


TEXT_PART = {"type": "text", "text": "What is this?"}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BAD_FIELDS: list[tuple[dict[str, Any], int, str | None]] = [
    ({"messages": None}, 400, "messages"),
    ({"messages": []}, 400, "messages"),
    ({"messages": {}}, 400, "messages"),
    ({"messages": ["hi"]}, 400, "messages[0]"),
    ({"messages": [{"role": "foo", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ({"model": "gpt-4"}, 404, "model"),
    ({"model": 3}, 400, "model"),
    ({"max_tokens": 0}, 400, "max_tokens"),
    ({"max_tokens": 100_000}, 400, "max_tokens"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, 400, "max_completion_tokens"),
    ({"temperature": -1}, 400, "temperature"),
    ({"temperature": "1"}, 400, "temperature"),
    ({"top_p": 0}, 400, "top_p"),
    ({"n": 0}, 400, "n"),
    ({"n": 1000}, 400, "n"),
    ({"seed": 1.5}, 400, "seed"),
    ({"stop": [""]}, 400, "stop"),
    ({"stream": "yes"}, 400, "stream"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options"),
    ({"top_logprobs": 21}, 400, "top_logprobs"),
    ({"thinking": {"type": "maybe"}}, 400, "thinking"),
    ({"reasoning_effort": "heroic"}, 400, "reasoning_effort"),
    ({"logit_bias": {"one": 5}}, 400, "logit_bias"),
    ({"logit_bias": {"4096": 5}}, 400, "logit_bias"),
    ({"presence_penalty": 2.5}, 400, "presence_penalty"),
    ({"priority": 1000}, 400, "priority"),
    ({"cache_salt": ""}, 400, "cache_salt"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, 400, "thinking.budget_tokens"),
    ({"response_format": {"type": "regex", "regex": "(["}}, 400, "response_format.pattern"),
    ({"response_format": {"type": "yaml"}}, 400, "response_format.type"),
    ({"response_format": {"type": "poem"}}, 400, "response_format.type"),
    ({"response_format": "json"}, 400, "response_format"),
    ({"tools": 1}, 400, "tools"),
    ({"tools": [1]}, 400, "tools[0]"),
    ({"tools": [{}]}, 400, "tools[0].type"),
    ({"tools": [WEATHER], "tool_choice": 5}, 400, "tool_choice"),
    ({"tool_choice": "required"}, 400, "tool_choice"),
    ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, 400, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "other"}}}, 400, "tool_choice"),
    ({"parallel_tool_calls": "x"}, 400, "parallel_tool_calls"),
    ({"top_logprobs": 3}, 400, "top_logprobs"),
    ({"repetition_penalty": True}, 400, "repetition_penalty"),
    ({"messages": [{"role": "user", "content": ["hi"]}]}, 400, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [TEXT_PART, IMAGE_PART]}]}, 400, "messages[0].content[1]"),
    ({"messages": [{"role": "user", "content": "x " * 3000}]}, 400, "messages"),
]


@pytest.mark.parametrize(("fields", "status", "param"), BAD_FIELDS, ids=lambda value: json.dumps(value)[:40])
async def test_a_bad_field_is_refused_by_name(
    scripted: Any, fields: dict[str, Any], status: int, param: str | None
) -> None:
    async with scripted("a" + EOS) as up:
        response = await up.post(PATH, **{"model": "tiny", "messages": ASK, **fields})
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert not up.engine.requests


ROLES = ("system", "user", "assistant")
EMPTY: list[Any] = ["", [], [{"type": "text", "text": ""}]]
NONSENSE: list[Any] = [None, 7, {}, [7], [{"type": "song"}]]
CONTENTS: list[tuple[str, Any, int]] = [
    *[(role, content, 200) for role in ROLES for content in EMPTY],
    *[(role, content, 400) for role in ROLES for content in NONSENSE],
]


@pytest.mark.parametrize(("role", "content", "status"), CONTENTS, ids=lambda value: json.dumps(value))
async def test_empty_content_is_content_and_nonsense_is_not(
    scripted: Any, role: str, content: Any, status: int
) -> None:
    async with scripted("x" + EOS) as up:
        response = await up.post(PATH, messages=[{"role": role, "content": content}, *ASK])
        assert response.status_code == status, response.text


@pytest.mark.parametrize(
    "reasoning", [{}, {"reasoning_content": None}, {"reasoning_content": ""}, {"reasoning_content": "so"}]
)
@pytest.mark.parametrize("thinking", [{"type": "enabled"}, OFF])
async def test_history_needs_no_reasoning(scripted: Any, reasoning: dict[str, Any], thinking: dict[str, str]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    turn = {"role": "assistant", "content": "", "tool_calls": [call], **reasoning}
    result = {"role": "tool", "tool_call_id": "c", "content": "rain"}
    async with scripted("x" + EOS) as up:
        await up.json(PATH, messages=[*ASK, turn, result], tools=[WEATHER], thinking=thinking)


@pytest.mark.parametrize("stream", [False, True])
async def test_stop_strings_end_the_reasoning_too_where_that_is_asked_for(scripted: Any, stream: bool) -> None:
    body = {"model": "tiny", "messages": ASK, "thinking": {"type": "enabled"}, "stop": ["three fo"], "logprobs": True}
    async with scripted("one two three four</think>the three four five six" + EOS) as up:

        async def ask(**more: Any) -> tuple[str, str, str]:
            asked = body | more
            if stream:
                found = merge(await up.frames(PATH, **asked))
                return found.get("reasoning_content", ""), found.get("content", ""), found["finish_reason"]
            choice = (await up.json(PATH, **asked))["choices"][0]
            message = choice["message"]
            return message["reasoning_content"] or "", message["content"] or "", choice["finish_reason"]

        assert await ask() == ("one two three four", "the ", "stop")
        assert await ask(stop_in_reasoning=True) == ("one two ", "", "stop")
        assert await ask(stop_in_reasoning=True, stop=["four!", "five"]) == (
            "one two three four",
            "the three four ",
            "stop",
        )
        response = await up.post(PATH, **body, stop_in_reasoning="yes")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "stop_in_reasoning")


async def test_the_end_token_is_never_shown_where_it_does_not_end_the_answer(
    scripted: Any, tokenizer: Tokenizer
) -> None:
    async with scripted("one" + EOS) as up:
        plain = await up.json(
            "/v1/completions", model="tiny", prompt="x", max_tokens=4, ignore_eos=True, return_token_ids=True
        )
        assert plain["choices"][0]["token_ids"].count(tokenizer.eos_token_id) == 2
        assert plain["choices"][0]["text"] == "oneone"
        chat = await up.json(PATH, model="tiny", messages=ASK, thinking=OFF, max_tokens=4, ignore_eos=True)
        assert chat["choices"][0]["message"]["content"] == "oneone"
