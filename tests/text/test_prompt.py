import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.engine.sampling import SamplingParams
from benthic.errors import PromptTooLong, RequestError, UnknownModel
from benthic.text import Prompt, PromptEncoder, PromptSettings, Tokenizer

USER = [{"role": "user", "content": "hi json"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": USER},
    "responses": {"input": "hi json"},
    "messages": {"messages": USER, "max_tokens": 100},
}
PROTOCOLS = tuple(BODIES)


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, context_len=4096)


def refusal(encoder: PromptEncoder, protocol: Any, body: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        encoder.encode(protocol, body)
    return error.value


# Thinking


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({"thinking": {"type": "enabled"}}, True),
        ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": True}, True),
        ({"enable_thinking": False}, False),
        ({"chat_template_kwargs": {"thinking": True}}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, False),
        ({"reasoning": {"enabled": False}}, False),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "low"}}, True),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "max"}, True),
        ({"output_config": {"effort": "high"}}, True),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False),
        ({}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("default", [False, True])
def test_every_spelling_of_thinking_decides_prompt_and_parser(
    tokenizer: Tokenizer, protocol: Any, fields: dict[str, Any], thinking: bool | None, default: bool
) -> None:
    settings = PromptSettings(default_thinking=default)
    prompt = PromptEncoder(tokenizer, context_len=4096, settings=settings).encode(protocol, BODIES[protocol] | fields)
    expected = default if thinking is None else thinking
    assert prompt.thinking == expected
    assert tokenizer.token(prompt.token_ids[-1]) == ("<think>" if expected else "</think>")
    assert (prompt.parsing.thinking_initial_stage is not None) == expected


def test_switches_that_disagree_are_refused(encoder: PromptEncoder) -> None:
    body = {"messages": USER, "thinking": {"type": "enabled"}, "chat_template_kwargs": {"thinking": False}}
    error = refusal(encoder, "chat", body)
    assert "thinking says on, chat_template_kwargs.thinking says off" in str(error)
    assert error.param == "thinking"


@pytest.mark.parametrize("switch", [{"thinking": {"type": "enabled"}}, {"enable_thinking": True}])
@pytest.mark.parametrize("effort", [{"reasoning_effort": "none"}, {"output_config": {"effort": "none"}}])
def test_thinking_is_not_asked_for_with_no_effort(encoder: PromptEncoder, switch: Any, effort: Any) -> None:
    error = refusal(encoder, "chat", {"messages": USER, **switch, **effort})
    assert "thinking is on, and the effort is 'none'" in str(error)


def test_an_effort_means_nothing_where_thinking_is_off(encoder: PromptEncoder) -> None:
    body = {"messages": USER, "thinking": {"type": "disabled"}}
    assert (
        encoder.encode("chat", body | {"reasoning_effort": "high"}).token_ids == encoder.encode("chat", body).token_ids
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("effort", [None, "low", "high", "max"])
def test_the_effort_reaches_the_prompt_of_every_protocol(tokenizer: Tokenizer, protocol: Any, effort: str) -> None:
    encoder = PromptEncoder(tokenizer, context_len=4096, settings=PromptSettings(prompt_dialect="recipe"))
    text = encoder.render(protocol, BODIES[protocol] | {"thinking": True, "reasoning_effort": effort}).text
    words = {None: "Absolute maximum", "low": "", "high": "Absolute maximum", "max": "Beyond maximum"}[effort]
    assert words in text
    assert ("Reasoning Effort" in text) == bool(words)


# Sampling


def test_explicit_sampling_values_hold_while_thinking(encoder: PromptEncoder) -> None:
    fields = {"temperature": 0, "top_p": 0.3, "top_k": 5, "min_p": 0.1, "seed": 7, "min_tokens": 2, "ignore_eos": True}
    sampling = encoder.encode("chat", {"messages": USER, "thinking": True, "stop_token_ids": [9], **fields}).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.0, 0.3, 5, 0.1)
    assert (sampling.seed, sampling.min_tokens, sampling.ignore_eos, sampling.stop_token_ids) == (7, 2, True, (9,))


def test_official_values_stand_in_where_nothing_is_said(encoder: PromptEncoder) -> None:
    body = {"messages": USER, "thinking": True}
    assert encoder.encode("chat", body).sampling.top_p == 1.0
    assert encoder.encode("chat", {**body, "tools": [TOOL]}).sampling.top_p == 0.95
    assert encoder.encode("chat", body).sampling.temperature == 1.0


def test_the_checkpoint_may_have_its_own_defaults(tokenizer: Tokenizer) -> None:
    settings = PromptSettings(default_temperature=0.0, default_top_p=0.5)
    encoder = PromptEncoder(tokenizer, context_len=4096, settings=settings)
    assert encoder.encode("chat", {"messages": USER}).sampling.temperature == 0.0
    assert encoder.encode("chat", {"messages": USER}).sampling.top_p == 0.5
    assert encoder.encode("chat", {"messages": USER, "temperature": 1}).sampling.temperature == 1.0


def test_log_probabilities_carry_the_number_of_alternatives(encoder: PromptEncoder) -> None:
    assert encoder.encode("chat", {"messages": USER}).sampling.logprobs is None
    assert encoder.encode("chat", {"messages": USER, "logprobs": True}).sampling.logprobs == 0
    assert encoder.encode("chat", {"messages": USER, "logprobs": True, "top_logprobs": 3}).sampling.logprobs == 3


BAD_NUMBERS = ["1", True, [], {}, -3, 1e400, 10**30]


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "top_logprobs",
    ],
)
def test_a_bad_number_is_refused_by_name(encoder: PromptEncoder, name: str, value: Any) -> None:
    error = refusal(encoder, "chat", {"messages": USER, "logprobs": True, name: value})
    assert error.param == name
    assert str(error).startswith(f"{name} is ")
    assert "must be" in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 0), ("temperature", 2), ("top_p", 1), ("top_k", -1), ("top_k", 0), ("min_p", 0), ("n", 1.0)]
    + [("max_tokens", 1), ("max_tokens", 5.0), ("seed", -1), ("seed", 0), ("logit_bias", {}), ("presence_penalty", 0)]
    + [
        ("temperature", None),
        ("n", None),
        ("max_tokens", None),
        ("stop", None),
        ("top_logprobs", None),
        ("seed", None),
    ],
)
def test_values_at_the_edge_and_null_are_accepted(encoder: PromptEncoder, name: str, value: Any) -> None:
    assert encoder.encode("chat", {"messages": USER, name: value}).num_samples == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0),
        ("temperature", 2.5),
        ("n", 0),
        ("n", 129),
        ("max_tokens", 0),
        ("stop", ["a"] * 17),
        ("stop", ""),
        ("stop", [1]),
        ("stop_token_ids", [1, None]),
        ("stop_token_ids", [10**6]),
        ("min_tokens", 5000),
        ("stream", "yes"),
        ("ignore_eos", 1),
        ("stream_options", {"include_usage": True}),
        ("reasoning_effort", "huge"),
        ("thinking", {"type": "on"}),
        ("chat_template_kwargs", []),
        ("model", 5),
        ("messages", []),
        ("messages", "hi"),
        ("messages", None),
        ("previous_response_id", "resp_1"),
    ],
)
def test_a_bad_value_is_refused_by_name(encoder: PromptEncoder, name: str, value: Any) -> None:
    error = refusal(encoder, "chat", {"messages": USER, name: value})
    assert error.param == name
    assert name in str(error)


def test_sampling_has_the_names_of_the_engine(encoder: PromptEncoder) -> None:
    prompt = encoder.encode("chat", {"messages": USER, "n": 2, "seed": 3, "max_tokens": 7, "top_p": 0.5})
    params = SamplingParams(**dataclasses.asdict(prompt.sampling), n=prompt.num_samples)
    assert (params.n, params.seed, params.max_tokens, params.top_p) == (2, 3, 7, 0.5)


# Limits


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_the_context_holds_prompt_and_reply(tokenizer: Tokenizer, protocol: Any) -> None:
    field = "max_output_tokens" if protocol == "responses" else "max_tokens"
    length = len(PromptEncoder(tokenizer, context_len=4096).encode(protocol, BODIES[protocol]).token_ids)
    exact = PromptEncoder(tokenizer, context_len=length)
    with pytest.raises(PromptTooLong, match=f"{length} tokens; the context of {length}"):
        exact.encode(protocol, BODIES[protocol])
    one_left = PromptEncoder(tokenizer, context_len=length + 1)
    assert one_left.encode(protocol, BODIES[protocol]).sampling.max_tokens == 1
    assert one_left.encode(protocol, BODIES[protocol] | {field: 1}).sampling.max_tokens == 1
    with pytest.raises(PromptTooLong, match=f"{field} is 2 .* {length} tokens.* {length + 1}, .* at most 1") as error:
        one_left.encode(protocol, BODIES[protocol] | {field: 2})
    assert error.value.param == field


def test_messages_lowers_max_tokens_to_the_room(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, context_len=50)
    prompt = encoder.encode("messages", BODIES["messages"] | {"max_tokens": 64000})
    assert prompt.sampling.max_tokens == 50 - len(prompt.token_ids)


def test_both_names_of_max_tokens_must_agree(encoder: PromptEncoder) -> None:
    same = {"messages": USER, "max_tokens": 7, "max_completion_tokens": 7}
    assert encoder.encode("chat", same).sampling.max_tokens == 7
    assert encoder.encode("chat", {"messages": USER, "max_completion_tokens": 9}).sampling.max_tokens == 9
    assert refusal(encoder, "chat", same | {"max_tokens": 8}).param == "max_completion_tokens"


# Conversations


def test_developer_is_read_as_system(encoder: PromptEncoder) -> None:
    developer, system = ([{"role": role, "content": "be brief"}, *USER] for role in ("developer", "system"))
    assert encoder.render("chat", {"messages": developer}) == encoder.render("chat", {"messages": system})
    assert encoder.render("responses", {"input": developer}) == encoder.render("chat", {"messages": system})


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"role": "foo", "content": "x"}, "messages[0].role"),
        ({"role": "function", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": 3}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, "messages[0].tool_calls[0].function"),
        (
            {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": None}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ("hi", "messages[0]"),
    ],
)
def test_a_bad_turn_is_refused_by_position(encoder: PromptEncoder, turn: Any, param: str) -> None:
    assert refusal(encoder, "chat", {"messages": [turn, *USER]}).param == param


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_empty_content_is_accepted(encoder: PromptEncoder, role: str, content: Any) -> None:
    assert encoder.encode("chat", {"messages": [*USER, {"role": role, "content": content}, *USER]}).token_ids


@pytest.mark.parametrize("reasoning", [{}, {"reasoning_content": None}, {"reasoning_content": ""}])
def test_history_without_reasoning_is_accepted(encoder: PromptEncoder, reasoning: dict[str, Any]) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [{"role": "assistant", "content": None, "tool_calls": [call], **reasoning}]
    messages = [*USER, *turns, {"role": "tool", "tool_call_id": "c", "content": "ok"}]
    text = encoder.render("chat", {"messages": messages, "tools": [TOOL], "thinking": True}).text
    assert "<｜Assistant｜><think></think>\n\n<｜DSML｜tool_calls>" in text


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "null", '{"a": 1}', {"a": 1}], ids=repr)
def test_any_arguments_text_in_the_history_is_rendered(encoder: PromptEncoder, arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": ""},
    ]
    assert 'invoke name="f">' in encoder.render("chat", {"messages": messages, "tools": [TOOL]}).text


def test_responses_items_make_the_prompt_of_the_same_chat(encoder: PromptEncoder) -> None:
    call = {"name": "f", "arguments": '{"a": "x"}'}
    chat = [
        {"role": "user", "content": "one"},
        {
            "role": "assistant",
            "reasoning_content": "hmm",
            "content": None,
            "tool_calls": [{"id": "c", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "res"},
    ]
    items = [
        {"role": "user", "content": "one"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hmm"}]},
        {"type": "function_call", "call_id": "c", **call},
        {"type": "function_call_output", "call_id": "c", "output": "res"},
    ]
    flat = {"type": "function", "name": "f", "parameters": TOOL["function"]["parameters"]}  # type: ignore[index]
    assert (
        encoder.render("responses", {"input": items, "tools": [flat], "thinking": True}).text
        == encoder.render("chat", {"messages": chat, "tools": [TOOL], "thinking": True}).text
    )


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background"])
def test_stored_conversations_are_refused_and_not_forgotten(encoder: PromptEncoder, field: str) -> None:
    assert refusal(encoder, "responses", {"input": "hi", field: "x"}).param == field


# Tools


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "function": {"name": "f"}}]
    + [{"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [TOOL]}}],
)
def test_a_forced_tool_opens_the_block_and_switches_default_thinking_off(encoder: PromptEncoder, choice: Any) -> None:
    body = {"messages": USER, "tools": [TOOL], "tool_choice": choice}
    assert encoder.render("chat", body).text.endswith("<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n")
    assert encoder.encode("chat", body).parsing.starts_in_tool_calls
    thinking = encoder.encode("chat", body | {"thinking": True})
    assert thinking.thinking and thinking.grammar is not None and thinking.grammar.starts_after is not None


def test_anthropic_any_forces_a_tool(encoder: PromptEncoder) -> None:
    tools = [{"type": "custom", "name": name, "input_schema": {"type": "object"}} for name in "fg"]
    body = BODIES["messages"] | {"tools": tools, "tool_choice": {"type": "any"}}
    assert encoder.render("messages", body).text.endswith("</think>\n\n<｜DSML｜tool_calls>\n")
    assert encoder.encode("messages", body).parsing.starts_in_tool_calls


def test_allowed_tools_keep_only_themselves(encoder: PromptEncoder) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER]}}
    text = encoder.render("chat", {"messages": USER, "tools": [TOOL, OTHER], "tool_choice": choice}).text
    assert '{"name": "g"' in text and '{"name": "f"' not in text
    assert refusal(encoder, "chat", {"messages": USER, "tools": [TOOL], "tool_choice": choice}).param == "tool_choice"


def test_a_bad_tool_name_is_refused_by_path(encoder: PromptEncoder) -> None:
    tool = {"type": "function", "function": {"name": "a b"}}
    assert refusal(encoder, "chat", {"messages": USER, "tools": [tool]}).param == "tools[0].function.name"


# Anthropic


def test_a_final_assistant_message_is_continued(encoder: PromptEncoder) -> None:
    body = {"messages": [*USER, {"role": "assistant", "content": "The answer"}]}
    assert encoder.render("messages", body).text.endswith("<｜Assistant｜></think>The answer")
    assert refusal(encoder, "messages", body | {"thinking": {"type": "enabled"}}).param == "messages"


@pytest.mark.parametrize("name", ["output_format", "output_config"])
def test_an_output_format_puts_the_schema_into_the_prompt(encoder: PromptEncoder, name: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    value = {"format": form} if name == "output_config" else form
    prompt = encoder.encode("messages", BODIES["messages"] | {name: value})
    assert prompt.parsing.parse_json_output
    text = encoder.render("messages", BODIES["messages"] | {name: value}).text
    assert (
        '## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{"type": "object"' in text
    )


# Models, unknown fields, bodies


def test_model_names_are_checked_and_may_be_left_out(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, context_len=4096, served_names=("tiny", "alias"))
    assert encoder.encode("chat", {"messages": USER}).model == "tiny"
    assert encoder.encode("chat", {"messages": USER, "model": "alias"}).model == "alias"
    with pytest.raises(UnknownModel, match="model is 'gpt'; it must be one of tiny, alias"):
        encoder.encode("chat", {"messages": USER, "model": "gpt"})


def test_unknown_fields_are_listed_or_in_strict_mode_refused(tokenizer: Tokenizer) -> None:
    body = {"messages": USER, "max_tokenz": 5, "user": "me"}
    assert PromptEncoder(tokenizer, context_len=4096).encode("chat", body).ignored == ("max_tokenz",)
    strict = PromptEncoder(tokenizer, context_len=4096, is_strict=True)
    assert "did you mean 'max_tokens'?" in str(refusal(strict, "chat", body))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"x"',
        b"null",
        b'{"a": NaN}',
        b"\xff",
        b"[" * 100_000,
        b'{"messages": [{"role": "\\ud800"}]}',
    ]
    + [b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"messages": [[]]}', b'{"messages": {"a": 1}}'],
    ids=repr,
)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bad_body_is_a_request_error(encoder: PromptEncoder, protocol: Any, raw: bytes) -> None:
    assert str(refusal(encoder, protocol, raw))


def test_a_body_is_left_as_it_was(encoder: PromptEncoder) -> None:
    body = {"messages": [{"role": "developer", "content": "x"}, *USER], "n": 2, "thinking": True, "temperature": 0.5}
    before = json.dumps(body)
    assert encoder.encode("chat", body).num_samples == 2
    assert json.dumps(body) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FULL: dict[str, dict[str, Any]] = {
    "chat": {
        "model": "m",
        "messages": [{"role": "system", "content": "s"}, *USER],
        "tools": [TOOL],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_object"},
        "stop": ["x"],
        "reasoning": {"effort": "low"},
    },
    "responses": {
        "input": USER,
        "instructions": "i",
        "text": {"format": {"type": "text"}},
        "reasoning": {},
        "tools": [],
    },
    "messages": {"messages": USER, "max_tokens": 5, "system": "s", "thinking": {"type": "disabled"}, "tools": []},
}


@given(data=st.data())
def test_mutated_requests_are_served_or_refused_and_nothing_else(encoder: PromptEncoder, data: st.DataObject) -> None:
    protocol: Any = data.draw(st.sampled_from(PROTOCOLS))
    body = json.loads(json.dumps(FULL[protocol]))
    place: Any = body
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
        else:
            break
    place[key] = data.draw(JSON)
    with contextlib.suppress(RequestError):
        assert isinstance(encoder.encode(protocol, json.dumps(body)), Prompt)
