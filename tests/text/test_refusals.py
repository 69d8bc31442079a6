"""Every refusal of a malformed conversation names the place, the value and what is allowed."""

import re
from typing import Any

import pytest

from benthic.errors import RequestError
from benthic.text import PromptEncoder, Tokenizer

USER = [{"role": "user", "content": "hi json"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": USER},
    "responses": {"input": "hi json"},
    "messages": {"messages": USER, "max_tokens": 100},
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, context_len=4096)


def refusal(encoder: PromptEncoder, protocol: Any, body: Any) -> RequestError:
    with pytest.raises(RequestError) as error:
        encoder.encode(protocol, body)
    return error.value


def function(**fields: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", **fields}}]


def schema(value: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": value, **fields}}


BAD_SHAPES: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": 1}, "tools", "tools is 1; it must be a list"),
    ({"tools": {}}, "tools", "a list"),
    ({"tools": [1]}, "tools[0]", "tools[0] is 1; it must be an object"),
    ({"tools": [{}]}, "tools[0].type", '"function"'),
    ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type", '"web_search"'),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "an object"),
    ({"tools": [{"type": "function", "function": 1}]}, "tools[0].function", "is 1"),
    ({"tools": function(name=5)}, "tools[0].function.name", "is 5"),
    ({"tools": function(description=5)}, "tools[0].function.description", "a string"),
    ({"tools": function(strict="y")}, "tools[0].function.strict", "true or false"),
    ({"tools": function(parameters=5)}, "tools[0].function.parameters", "JSON schema"),
    ({"tools": function(parameters={"type": "nope"})}, "tools[0].function.parameters", '"nope"'),
    ({"tools": [TOOL, *function(parameters={"properties": 5})]}, "tools[1].function.name", "names must differ"),
    ({"response_format": "json"}, "response_format", '"json"'),
    ({"response_format": {}}, "response_format.type", "json_object"),
    ({"response_format": {"type": "poem"}}, "response_format.type", '"poem"'),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "an object"),
    ({"response_format": schema(5)}, "response_format.json_schema.schema", "is 5"),
    ({"response_format": schema({"type": "nope"})}, "response_format.json_schema.schema", '"nope"'),
    ({"response_format": schema({}, strict="y")}, "response_format.json_schema.strict", "true or false"),
    ({"tools": [TOOL], "tool_choice": 5}, "tool_choice", "is 5; it must be none, auto, required"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice", '"any"'),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function", "name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.function", "name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "'f'"),
    ({"tool_choice": "required"}, "tool_choice", "no tools are offered"),
    ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "no tools"),
    ({"parallel_tool_calls": "x"}, "parallel_tool_calls", '"x"'),
    ({"top_logprobs": 3}, "top_logprobs", "unless logprobs is true"),
    ({"top_logprobs": 3, "logprobs": False}, "top_logprobs", "unless logprobs is true"),
    ({"repetition_penalty": True}, "repetition_penalty", "is true"),
    ({"presence_penalty": False}, "presence_penalty", "is false"),
]


@pytest.mark.parametrize(("fields", "param", "words"), BAD_SHAPES, ids=repr)
def test_a_bad_shape_is_refused_by_field_value_and_what_is_allowed(
    encoder: PromptEncoder, fields: dict[str, Any], param: str, words: str
) -> None:
    error = refusal(encoder, "chat", {"messages": USER, **fields})
    assert error.param == param
    assert param in str(error)
    assert words in str(error)


@pytest.mark.parametrize(
    ("turn", "param"),
    [
        ({"role": "user", "content": ["hi"]}, "content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, 5]}, "content[1]"),
        ({"role": "system", "content": [{"type": "text", "text": 5}]}, "content[0].text"),
        ({"role": "user", "content": [{"type": "song"}]}, "content[0].type"),
        ({"role": "user", "content": "x", "name": 5}, "name"),
        ({"role": "assistant", "content": "x", "reasoning_content": 5}, "reasoning_content"),
        ({"role": "assistant", "content": "x", "tool_calls": []}, "tool_calls"),
        ({"role": "assistant", "content": "x", "tool_calls": [CALL | {"id": 5}]}, "tool_calls[0].id"),
        ({"role": "assistant", "content": "x", "tool_calls": [CALL | {"type": "x"}]}, "tool_calls[0].type"),
        ({"role": "tool", "content": "x"}, "tool_call_id"),
    ],
    ids=repr,
)
def test_a_bad_part_of_a_turn_is_refused_by_its_place(encoder: PromptEncoder, turn: Any, param: str) -> None:
    error = refusal(encoder, "chat", {"messages": [*USER, turn]})
    assert error.param == f"messages[1].{param}"
    assert str(error).startswith(f"messages[1].{param} is ")


RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]}


@pytest.mark.parametrize(
    ("protocol", "turn", "param"),
    [
        *[("chat", {"role": role, "content": [{"type": kind}]}, "messages[0].content[0]")
          for kind in ("image_url", "input_image", "file", "input_audio", "video_url") for role in ("user", "system")],
        *[("responses", {"role": "user", "content": [{"type": kind}]}, "input[0].content[0]")
          for kind in ("input_image", "input_file")],
        ("responses", {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image"}]},
         "input[0].output[0]"),
        *[("messages", {"role": "user", "content": [{"type": kind, "source": {}}]}, "messages[0].content[0]")
          for kind in ("image", "document")],
        ("messages", {"role": "user", "content": [RESULT]}, "messages[0].content[0].content[0]"),
    ],
    ids=repr,
)  # fmt: skip
def test_images_and_files_are_refused_and_not_dropped(
    encoder: PromptEncoder, protocol: Any, turn: Any, param: str
) -> None:
    field = "input" if protocol == "responses" else "messages"
    error = refusal(encoder, protocol, {**BODIES[protocol], field: [turn]})
    assert error.param == param
    assert "reads text only" in str(error)


@pytest.mark.parametrize(
    ("protocol", "fields"),
    [
        ("responses", {"text": 5}),
        ("responses", {"tools": [{"type": "function"}]}),
        ("messages", {"system": 5}),
        ("messages", {"tools": [{"name": 5, "input_schema": {}}]}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}),
        ("chat", {"messages": [{"role": "assistant", "content": "a", "prefix": 5}]}),
    ],
    ids=repr,
)
def test_no_refusal_speaks_of_the_librarys_types(encoder: PromptEncoder, protocol: Any, fields: Any) -> None:
    message = str(refusal(encoder, protocol, {**BODIES[protocol], **fields}))
    assert not re.search(r"struct|enum|variant|sequence|`|\b[iuf]\d+\b|[a-z][A-Z]\w+", message), message


def test_a_tiny_top_p_is_the_one_that_was_sent(encoder: PromptEncoder) -> None:
    assert encoder.encode("chat", {"messages": USER, "top_p": 1e-30}).sampling.top_p == 1e-30


def test_an_endless_integer_has_words_of_its_own(encoder: PromptEncoder) -> None:
    error = refusal(encoder, "chat", b'{"messages": [], "seed": ' + b"9" * 5000 + b"}")
    assert "64 bits" in str(error)
    assert "set_int_max_str_digits" not in str(error)
