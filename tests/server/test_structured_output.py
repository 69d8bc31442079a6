"""Replies of a random model keep to what was asked: schemas, expressions, forced and strict calls (B120, B122, B124).

A random model would never write JSON by itself, so whatever is valid here is the grammar's doing.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.models.transformer import Transformer
from benthic.server.config import ServerConfig
from tests.server.conftest import MASKS, Running, build, running
from tests.text.schema_cases import schema_case

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say it in JSON."}],
    "max_tokens": 200,
    "seed": 5,
    "temperature": 1.0,
}
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 1, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "pattern": "^[A-Z][a-z]{2,5}$"},
        "days": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1, "maximum": 7},
            "minItems": 1,
            "maxItems": 2,
        },
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def tool(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


TOOLS = [tool("get_weather", PARAMETERS), tool("now", NOTHING)]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def served(model: Transformer) -> AsyncIterator[Running]:
    """The random model behind one application for the whole file."""
    engine = Engine(model, EngineConfig(max_num_seqs=8, max_model_len=2048, debug_checks=True), masks=MASKS)
    async with running(build(engine, ServerConfig()), engine) as up:
        yield up


@pytest.fixture(scope="module")
async def drafting(model: Transformer) -> AsyncIterator[Running]:
    """The same model with drafts from the text's own repetitions."""
    config = EngineConfig(max_num_seqs=8, max_model_len=2048, drafter="ngram", draft_len=4, draft_adaptive=False)
    engine = Engine(model, config, masks=MASKS)
    async with running(build(engine, ServerConfig()), engine) as up:
        yield up


def content(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


async def schema_answers(up: Running, seeds: range) -> list[dict[str, Any]]:
    """A choice for the schema of each seed, eight at a time."""
    room = asyncio.Semaphore(8)
    [quote] = up.service.tokenizer.encode('"')  # without help a random model hardly ever ends a string
    body = ASK | {"max_tokens": 400, "logit_bias": {str(quote): 5.0}, "thinking": False}

    async def ask(seed: int) -> dict[str, Any]:
        form = {"type": "json_schema", "json_schema": {"name": "case", "schema": schema_case(seed)}}
        async with room:
            reply = await up.json(CHAT, **body | {"seed": seed}, response_format=form)
        return dict(reply["choices"][0])

    return await asyncio.gather(*map(ask, seeds))


async def check_schemas(plain: Running, drafting: Running, num_schemas: int) -> None:
    seeds = range(num_schemas)
    answers = await schema_answers(plain, seeds)
    whole = 0
    for seed, answer in zip(seeds, answers, strict=True):
        if answer["finish_reason"] == "length":
            continue
        assert answer["finish_reason"] == "stop"
        value = json.loads(answer["message"]["content"])
        jsonschema.Draft202012Validator(schema_case(seed)).validate(value)
        whole += 1
    print(f"{whole} of {num_schemas} answers are whole and valid, the others cut by their length")
    assert whole >= 0.9 * num_schemas
    drafted = await schema_answers(drafting, seeds)
    assert [answer["message"] for answer in drafted] == [answer["message"] for answer in answers]


async def test_answers_are_valid_under_their_schemas_and_the_same_with_drafts(
    served: Running, drafting: Running
) -> None:
    await check_schemas(served, drafting, 10)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
async def test_two_hundred_schemas_with_and_without_drafts(served: Running, drafting: Running) -> None:
    await check_schemas(served, drafting, int(os.environ.get("NUM_SCHEMAS", "200")))


async def test_several_answers_conform_and_streams_say_the_same(served: Running) -> None:
    body = ASK | {"n": 3, "thinking": False, "response_format": FORMAT}
    reply = await served.json(CHAT, **body)
    texts = [choice["message"]["content"] for choice in reply["choices"]]
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(texts)) > 1
    frames = await served.frames(CHAT, **body)
    joined = ["", "", ""]
    for frame in frames:
        for choice in frame["choices"]:
            joined[choice["index"]] += choice["delta"].get("content") or ""
    assert joined == texts


@pytest.mark.parametrize("drafts", [False, True])
async def test_the_grammar_begins_where_the_thinking_ends_b120(
    served: Running, drafting: Running, drafts: bool
) -> None:
    up = drafting if drafts else served
    body = ASK | {"n": 2, "thinking": True, "thinking_budget": 12, "response_format": FORMAT}
    reply = await up.json(CHAT, **body)
    for choice in reply["choices"]:
        assert choice["message"]["reasoning_content"]
        jsonschema.validate(json.loads(choice["message"]["content"]), SCHEMA)


async def test_a_json_answer_that_is_cut_says_length(served: Running) -> None:
    reply = await served.json(CHAT, **ASK | {"max_tokens": 4}, thinking=False, response_format=FORMAT)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert content(reply).lstrip().startswith("{")
    with pytest.raises(json.JSONDecodeError):
        json.loads(content(reply))


EXTENSIONS: list[tuple[dict[str, Any], str]] = [
    ({"regex": "[a-c]{3}-[0-9]"}, "[a-c]{3}-[0-9]"),
    ({"guided_regex": "(ab){2,3}"}, "(ab){2,3}"),
    ({"ebnf": 'root ::= "x" digit digit\ndigit ::= [0-9]'}, "x[0-9]{2}"),
    ({"guided_grammar": 'root ::= "yes" | "no"'}, "yes|no"),
    ({"guided_choice": ["red", 'say "hi"', "青"]}, 'red|say "hi"|青'),
    ({"guided_json": json.dumps({"enum": ["a", 1]})}, '"a"|1'),
    ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
    ({"structured_outputs": {"json": {"const": None}, "regex": None}}, "null"),
    ({"response_format": {"type": "regex", "pattern": "[xy]{2}"}}, "[xy]{2}"),
    ({"response_format": {"type": "ebnf", "grammar": 'root ::= "ok"'}}, "ok"),
    ({"structural_tag": {"format": {"type": "const_string", "value": "<a>"}}}, "<a>"),
    (
        {
            "structural_tag": {
                "type": "structural_tag",
                "format": {
                    "type": "tag",
                    "begin": "<n>",
                    "content": {"type": "json_schema", "json_schema": {"enum": [1, 2]}},
                    "end": "</n>",
                },
            }
        },
        "<n>[12]</n>",
    ),
]


@pytest.mark.parametrize(("fields", "pattern"), EXTENSIONS, ids=lambda value: str(value)[:40])
async def test_extension_fields_hold_in_chat_and_completions(
    served: Running, fields: dict[str, Any], pattern: str
) -> None:
    chat = await served.json(CHAT, **ASK, **fields, thinking=False)
    assert re.fullmatch(pattern, content(chat)), content(chat)
    plain = await served.json("/v1/completions", prompt="x", max_tokens=60, seed=2, **fields)
    assert re.fullmatch(pattern, plain["choices"][0]["text"]), plain["choices"][0]


async def test_responses_and_messages_conform_too(served: Running) -> None:
    form = {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}
    reply = await served.json(
        "/v1/responses", input="json", reasoning={"effort": "none"}, text={"format": form}, max_output_tokens=200
    )
    [message] = [item for item in reply["output"] if item["type"] == "message"]
    jsonschema.validate(json.loads(message["content"][0]["text"]), SCHEMA)
    for field in ({"output_format": {"type": "json_schema", "schema": SCHEMA}},) * 1 + (
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ):
        body = {"messages": ASK["messages"], "max_tokens": 200, "thinking": {"type": "disabled"}, **field}
        reply = await served.json("/v1/messages", **body)
        jsonschema.validate(json.loads(reply["content"][0]["text"]), SCHEMA)


async def test_a_prefilled_answer_goes_on_within_the_format(served: Running) -> None:
    turns = [*ASK["messages"], {"role": "assistant", "content": '{"name": "Ada", "a'}]
    body = {"max_tokens": 60, "output_format": {"type": "json_schema", "schema": SCHEMA}}
    reply = await served.json("/v1/messages", messages=turns, **body)
    value = json.loads('{"name": "Ada", "a' + reply["content"][0]["text"])
    jsonschema.validate(value, SCHEMA)
    turns[-1] = {"role": "assistant", "content": "[1,"}
    refused = await served.post("/v1/messages", messages=turns, **body)
    assert refused.status_code == 400
    assert "does not allow" in refused.text


# Tools


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    assert "tool_call_errors" not in choice, choice
    calls = [call["function"] for call in choice["message"].get("tool_calls") or ()]
    return [(call["name"], json.loads(call["arguments"])) for call in calls]


@pytest.mark.parametrize("is_thinking", [False, True], ids=["plain", "thinking"])
@pytest.mark.parametrize("name", ["get_weather", "now"])
async def test_a_named_function_is_called_with_valid_arguments_b124(
    served: Running, name: str, is_thinking: bool
) -> None:
    choice = {"type": "function", "function": {"name": name}}
    more = {"thinking": is_thinking, "parallel_tool_calls": False}
    if is_thinking:
        more["thinking_budget"] = 6
    body = ASK | {"tools": TOOLS, "tool_choice": choice, **more}
    reply = (await served.json(CHAT, **body))["choices"][0]
    assert reply["finish_reason"] == "tool_calls"
    [(called, arguments)] = calls_of(reply)
    assert called == name
    jsonschema.validate(arguments, PARAMETERS if name == "get_weather" else NOTHING)
    assert "DSML" not in (reply["message"]["content"] or "")
    frames = await served.frames(CHAT, **body)
    deltas = [choice["delta"] for frame in frames for choice in frame["choices"]]
    parts = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    assert json.loads("".join(part.get("arguments") or "" for part in parts) or "{}") == arguments
    assert "DSML" not in "".join(delta.get("content") or "" for delta in deltas)


@pytest.mark.parametrize("drafts", [False, True], ids=["plain", "drafts"])
async def test_a_required_call_is_one_of_the_tools_and_valid_b122(
    served: Running, drafting: Running, drafts: bool
) -> None:
    up = drafting if drafts else served
    strict = [tool("get_weather", PARAMETERS, strict=True), tool("now", NOTHING, strict=False)]
    body = ASK | {"tools": strict, "tool_choice": "required", "parallel_tool_calls": False, "thinking": False, "n": 4}
    reply = await up.json(CHAT, **body)
    for choice in reply["choices"]:
        [(name, arguments)] = calls_of(choice)
        jsonschema.validate(arguments, PARAMETERS if name == "get_weather" else NOTHING)


async def test_any_tool_of_messages_and_required_of_responses_are_calls(served: Running) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    tools = [{"name": "get_weather", "input_schema": PARAMETERS}]
    reply = await served.json("/v1/messages", messages=ASK["messages"], max_tokens=200, tools=tools, tool_choice=choice)
    assert reply["stop_reason"] == "tool_use"
    [call] = [block for block in reply["content"] if block["type"] == "tool_use"]
    jsonschema.validate(call["input"], PARAMETERS)
    tools = [{"type": "function", "name": "get_weather", "parameters": PARAMETERS, "strict": True}]
    more = {"tool_choice": "required", "parallel_tool_calls": False, "max_output_tokens": 200}
    reply = await served.json("/v1/responses", input="hi", tools=tools, **more)
    [call] = [item for item in reply["output"] if item["type"] == "function_call"]
    jsonschema.validate(json.loads(call["arguments"]), PARAMETERS)


# Refusals


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {}}}}},
        "not",
        "schema",
    ),
    (
        {"guided_json": {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#"}}}},
        "no end",
        "guided_json",
    ),
    ({"regex": "a(?=b)"}, "looks ahead", "regex"),
    ({"regex": ".{0,1000}"}, "100 times", "regex"),
    ({"ebnf": "root ::= missing"}, "missing", "ebnf"),
    ({"structural_tag": {"format": {"type": "nothing"}}}, "nothing", "structural_tag"),
    ({"regex": "a", "guided_choice": ["b"]}, "both given", "guided_choice"),
    ({"guided_choice": []}, "1 to 1000", "guided_choice"),
    ({"structured_outputs": {"lark": "x"}}, "absent", "structured_outputs.lark"),
    ({"tools": [tool("f", {"type": "object", "properties": {"a": {"not": {}}}}, strict=True)]}, "not", "parameters"),
]


@pytest.mark.parametrize(("fields", "words", "param"), REFUSED, ids=lambda value: str(value)[:40])
async def test_what_cannot_be_kept_to_is_refused_with_the_reason(
    served: Running, fields: dict[str, Any], words: str, param: str
) -> None:
    response = await served.post(CHAT, **ASK, **fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert words in error["message"] and param in error["param"], error
    assert served.service.channel.num_open == 0


async def test_a_loose_tool_that_cannot_be_kept_to_may_have_any_arguments(served: Running) -> None:
    loose = tool("f", {"type": "object", "properties": {"a": {"not": {"type": "integer"}}}})
    body = ASK | {"tools": [loose], "tool_choice": "required", "thinking": False, "max_tokens": 8}
    assert (await served.json(CHAT, **body))["choices"][0]["finish_reason"] == "length"


async def test_compiling_is_counted_once_for_each_grammar(served: Running) -> None:
    counts = []
    for pattern in ("[xyz]", "[xyz]", "[xyz]", "[uvw]"):
        await served.json(CHAT, **ASK, regex=pattern, thinking=False)
        text = (await served.client.get("/metrics")).text
        counts.append(float(text.split("benthic_grammar_compilation_time_seconds_count ")[1].split()[0]))
    assert [count - counts[0] for count in counts] == [0, 0, 0, 1]
