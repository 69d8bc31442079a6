import json
from typing import Any

import deepseek_recipe as recipe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benthic.text import PromptEncoder, PromptSettings, Tokenizer, render_conversation, render_reply

from . import spec_renderer
from .conftest import CONTROL

DIALECTS = ("2026-04", "recipe")
WORDS = st.text(max_size=20) | st.lists(st.sampled_from([*CONTROL, "你好", "</b>", '"', "\n\n", "{}"]), max_size=4).map(
    "".join
)
NAMES = st.text(alphabet="abcXYZ_-09", min_size=1, max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)
TOOLS = st.dictionaries(NAMES, WORDS, min_size=1, max_size=3).map(
    lambda named: [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": text,
                "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": text}}},
            },
        }
        for name, text in named.items()
    ]
)


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    """Chat bodies that end where the model is to speak."""
    tools = draw(st.none() | TOOLS)
    messages: list[dict[str, Any]] = draw(
        st.lists(st.builds(lambda t: {"role": "system", "content": t}, WORDS), max_size=1)
    )
    for _ in range(draw(st.integers(0, 3))):
        messages += [{"role": "user", "content": draw(WORDS)} for _ in range(draw(st.integers(1, 2)))]
        assistant = {"role": "assistant", "content": draw(WORDS), "reasoning_content": draw(WORDS)}
        messages.append(assistant)
        if tools and draw(st.booleans()):
            messages += _answered_calls(draw, assistant, tools)
            if draw(st.booleans()):
                messages.append({"role": "assistant", "content": draw(WORDS), "reasoning_content": draw(WORDS)})
    if messages and messages[-1]["role"] == "tool" and draw(st.booleans()):
        pass
    else:
        messages.append({"role": "user", "content": draw(WORDS)})
    body: dict[str, Any] = {"messages": messages, "thinking": draw(st.booleans())}
    if tools:
        body["tools"] = tools
    effort = draw(st.sampled_from([None, "low", "high", "max"]))
    if effort is not None:
        body["reasoning_effort"] = effort
    if draw(st.booleans()):
        schema = {"type": "object", "properties": {draw(NAMES): {"type": "string", "description": draw(WORDS)}}}
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return body


def _answered_calls(draw: st.DrawFn, assistant: dict[str, Any], tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assistant["tool_calls"] = [
        {
            "id": f"c{i}",
            "type": "function",
            "function": {
                "name": draw(st.sampled_from(tools))["function"]["name"],
                "arguments": json.dumps(draw(st.dictionaries(NAMES, VALUES, max_size=3))),
            },
        }
        for i in range(draw(st.integers(1, 3)))
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": draw(WORDS)} for call in assistant["tool_calls"]]
    return draw(st.permutations(results))


def expected(body: dict[str, Any], dialect: str) -> str:
    form = body.get("response_format")
    return spec_renderer.render(
        body["messages"],
        thinking=body["thinking"],
        dialect=dialect,
        effort=body.get("reasoning_effort"),
        tools=body.get("tools"),
        schema=form["json_schema"]["schema"] if form else None,
    )


def encoder(tokenizer: Tokenizer, dialect: Any) -> PromptEncoder:
    return PromptEncoder(tokenizer, context_len=10**6, settings=PromptSettings(prompt_dialect=dialect))


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=200)
@given(body=conversations())
def test_prompts_follow_the_written_rules(tokenizer: Tokenizer, dialect: Any, body: dict[str, Any]) -> None:
    assert encoder(tokenizer, dialect).render("chat", body).text == expected(body, dialect)


@given(body=conversations())
def test_prompt_ids_are_those_of_the_official_encoder(tokenizer: Tokenizer, body: dict[str, Any]) -> None:
    prompt = encoder(tokenizer, "recipe").encode("chat", body)
    official = recipe.DeepseekV4Encoding().with_tokenizer(tokenizer.recipe)
    assert prompt.token_ids == official.encode(prompt.request.conversation)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(body=conversations())
def test_only_markup_is_control_tokens(tokenizer: Tokenizer, dialect: Any, body: dict[str, Any]) -> None:
    rendered = encoder(tokenizer, dialect).render("chat", body)
    controls = [text for text, is_control in rendered.segments if is_control]
    spelled = [text for text, is_control in rendered.segments if not is_control]
    ids = rendered.encode(tokenizer)
    assert tokenizer.decode(ids) == rendered.text
    assert [i for i in ids if i in tokenizer.control_ids] == [tokenizer.token_id(text) for text in controls]
    assert len(controls) + len(spelled) == len(rendered.segments)


@pytest.mark.parametrize("dialect", DIALECTS)
@given(body=conversations())
def test_the_reply_is_read_from_where_the_prompt_ends(tokenizer: Tokenizer, dialect: Any, body: dict[str, Any]) -> None:
    prompt = encoder(tokenizer, dialect).encode("chat", body)
    last = tokenizer.token(prompt.token_ids[-1])
    assert last == ("<think>" if body["thinking"] else "</think>")
    assert prompt.thinking == body["thinking"]
    assert (prompt.parsing.thinking_initial_stage is not None) == body["thinking"]


def test_the_worked_example_of_the_specification() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo", "reasoning_content": "r"},
        {"role": "user", "content": "x"},
    ]
    assert render_conversation(messages, thinking=True).text == (
        "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>yo<｜end▁of▁sentence｜><｜User｜>x<｜Assistant｜><think>"
    )


def test_a_reminder_has_its_own_marker() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "latest_reminder", "content": "mind"}]
    assert "<｜latest_reminder｜>mind" in render_conversation(messages).text


def test_the_april_dialect_adds_no_effort_text_unless_asked_for_the_maximum(tokenizer: Tokenizer) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "thinking": True}
    april = encoder(tokenizer, "2026-04")
    bare = "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>"
    assert april.render("chat", body).text == bare
    assert april.render("chat", {**body, "reasoning_effort": "high"}).text == bare
    assert "Absolute maximum" in april.render("chat", {**body, "reasoning_effort": "max"}).text
    assert "Absolute maximum" in encoder(tokenizer, "recipe").render("chat", body).text


@given(
    body=conversations(),
    reasoning=WORDS,
    content=WORDS,
    arguments=st.none() | st.dictionaries(NAMES, VALUES, max_size=3),
)
def test_prompt_and_reply_begin_the_prompt_of_the_next_turn(
    tokenizer: Tokenizer, body: dict[str, Any], reasoning: str, content: str, arguments: dict[str, Any] | None
) -> None:
    body.pop("reasoning_effort", None)
    thinking = body["thinking"] and "tools" in body  # without tools, reasoning is dropped from the next prompt
    body["thinking"] = thinking
    reasoning = reasoning if thinking else ""
    has_call = "tools" in body and arguments is not None
    calls = [{"name": "f", "arguments": arguments}] if has_call else []
    assistant: dict[str, Any] = {"role": "assistant", "content": content, "reasoning_content": reasoning}
    following: list[dict[str, Any]] = [{"role": "user", "content": "and?"}]
    if has_call:
        function = {"name": "f", "arguments": json.dumps(arguments)}
        assistant["tool_calls"] = [{"id": "c0", "type": "function", "function": function}]
        following = [{"role": "tool", "tool_call_id": "c0", "content": "done"}]
    april = encoder(tokenizer, "2026-04")
    before = april.render("chat", body).segments
    after = april.render("chat", {**body, "messages": [*body["messages"], assistant, *following]}).segments
    reply = render_reply(thinking=thinking, reasoning=reasoning, content=content, tool_calls=calls).segments
    assert after[: len(before) + len(reply)] == before + reply


def test_a_reply_with_thinking_holds_the_closing_token_and_the_end() -> None:
    reply = render_reply(thinking=True, reasoning="r", content="a</think>")
    assert reply.segments == (("r", False), ("</think>", True), ("a</think>", False), ("<｜end▁of▁sentence｜>", True))
    assert render_reply(thinking=False, content="a").segments == (("a", False), ("<｜end▁of▁sentence｜>", True))
