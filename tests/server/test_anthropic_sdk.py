"""Anthropic's own client, sync and async, at the endpoints that it has here, and the wire beside it."""

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import BaseModel, TypeAdapter

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.models.transformer import Transformer
from benthic.server.config import ServerConfig
from benthic.text.tokenizer import EOS, Tokenizer
from tests.server.conftest import CONTEXT_LEN, MASKS, Live, build
from tests.server.scripted_engine import ScriptedEngine, answers_by_prompt

CALL = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="add">\n'
    '<｜DSML｜parameter name="a" string="false">347</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="b" string="false">285</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + EOS
)
ANSWERS = {
    "632, said the tool": "so it is</think>It is 632." + EOS,
    "must call": CALL.partition("\n")[2],
    "call add": "carry</think>Let me see.\n\n" + CALL,
    "as JSON": '</think>{"name": "Ada", "born": 1815}' + EOS,
    "go on": ", three" + EOS,
    "": "carry 🤔</think>632 🌊" + EOS,
}
TOOL: Any = {
    "name": "add",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
THINK: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


class Verdict(BaseModel):
    """Short however it is filled in."""

    colour: Literal["red", "green", "blue"]
    is_sure: bool


class Person(BaseModel):
    name: str
    born: int


def asked(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def up(tokenizer: Tokenizer) -> Iterator[Live]:
    """A server that answers by what is asked."""
    engine = ScriptedEngine(answers_by_prompt(tokenizer, ANSWERS), tokenizer=tokenizer, context_len=4096)
    with Live(build(engine, ServerConfig(api_key="key", max_open_sequences=2)), engine) as live:
        yield live


@pytest.fixture(scope="module")
def sampler(model: Transformer) -> Iterator[anthropic.Anthropic]:
    """Before a server over the random model."""
    engine = Engine(model, EngineConfig(max_num_seqs=8, max_model_len=CONTEXT_LEN, debug_checks=True), masks=MASKS)
    with (
        Live(build(engine, ServerConfig()), engine) as live,
        anthropic.Anthropic(base_url=live.url, api_key="any", max_retries=0) as client,
    ):
        yield client


@pytest.fixture
def client(up: Live) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=up.url, api_key="key", max_retries=0) as client:
        yield client


def without_names(message: Any) -> Any:
    """A message but for its own names, and for what the client does not gather of a stream."""
    body = message.model_dump(mode="json", exclude={"id", "parsed_output"})
    for block in body["content"]:
        block.pop("signature", None)
        block.pop("parsed_output", None)
    body["usage"] = {name: body["usage"][name] for name in ("input_tokens", "cache_read_input_tokens", "output_tokens")}
    return body


def call_of(message: Any) -> Any:
    return next(block for block in message.content if block.type == "tool_use")


def test_a_message_is_the_same_plain_streamed_and_on_the_wire(up: Live, client: anthropic.Anthropic) -> None:
    options: Any = {"model": "tiny", "max_tokens": 2000, "messages": asked("347 + 285?"), **THINK}
    plain = client.messages.create(**options)
    assert plain.id.startswith("msg_")
    assert [block.type for block in plain.content] == ["thinking", "text"]
    thinking, text = plain.content
    assert thinking.type == "thinking"
    assert text.type == "text"
    assert (thinking.thinking, text.text, plain.stop_reason) == ("carry 🤔", "632 🌊", "end_turn")
    assert plain.usage.output_tokens_details is not None
    assert 0 < plain.usage.output_tokens_details.thinking_tokens < plain.usage.output_tokens
    with client.messages.stream(**options) as stream:
        assert "".join(stream.text_stream) == "632 🌊"
        final = stream.get_final_message()
    assert without_names(final) == without_names(plain)
    headers = {"x-api-key": "key", "anthropic-version": "2023-06-01"}
    wire = httpx.post(f"{up.url}/v1/messages", json={**options, "stream": True}, headers=headers)
    frames = [frame.split("\n") for frame in wire.text.split("\n\n") if frame and not frame.startswith(":")]
    for name, data in frames:
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")
        if name != "event: ping":
            EVENTS.validate_json(data.removeprefix("data: "))
    assert frames[0][0] == "event: message_start"
    assert frames[-1][0] == "event: message_stop"
    Message.model_validate(httpx.post(f"{up.url}/v1/messages", json=options, headers=headers).json())


def test_deltas_of_a_stream_come_in_blocks_one_after_the_other(client: anthropic.Anthropic) -> None:
    """B95."""
    events = list(
        client.messages.create(
            model="tiny", max_tokens=2000, messages=asked("call add"), tools=[TOOL], stream=True, **THINK
        )
    )
    opened = [event.content_block.type for event in events if event.type == "content_block_start"]
    assert opened == ["thinking", "text", "tool_use"]
    is_open = -1
    for event in events:
        if event.type == "content_block_start":
            is_open = event.index
        elif event.type in ("content_block_delta", "content_block_stop"):
            assert event.index == is_open
    pieces = [
        event.delta.partial_json
        for event in events
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
    ]
    assert json.loads("".join(pieces)) == {"a": 347, "b": 285}
    [last] = [event for event in events if event.type == "message_delta"]
    assert last.delta.stop_reason == "tool_use"


def test_a_tool_goes_round_with_the_thinking_before_it(up: Live, client: anthropic.Anthropic) -> None:
    options: Any = {"model": "tiny", "max_tokens": 2000, "tools": [TOOL], **THINK}
    first = client.messages.create(messages=asked("call add"), **options)
    assert first.stop_reason == "tool_use"
    call = call_of(first)
    assert call.input == {"a": 347, "b": 285}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "632, said the tool"}
    history = [
        *asked("call add"),
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(messages=history, **options)
    assert second.content[-1].type == "text"
    assert second.content[-1].text == "It is 632."
    assert "<think>carry</think>Let me see." in up.service.tokenizer.decode(list(up.engine.requests[-1].prompt_ids))


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_forced_tool_is_called_at_once(client: anthropic.Anthropic, choice: Any) -> None:
    options: Any = {"model": "tiny", "max_tokens": 100, "tools": [TOOL], "tool_choice": choice}
    message = client.messages.create(messages=asked("must call"), thinking={"type": "disabled"}, **options)
    assert [block.type for block in message.content] == ["tool_use"]
    assert call_of(message).input == {"a": 347, "b": 285}


def test_answers_are_parsed_into_the_callers_types(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(
        model="tiny", max_tokens=2000, messages=asked("as JSON"), output_format=Person, **THINK
    )
    assert parsed.parsed_output == Person(name="Ada", born=1815)


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
def test_a_model_that_knows_nothing_answers_in_the_callers_types(sampler: anthropic.Anthropic, thinking: str) -> None:
    mode: Any = {"type": thinking, **({"budget_tokens": 5} if thinking == "enabled" else {})}
    message = sampler.messages.parse(
        model="tiny", max_tokens=200, messages=asked("hi"), output_format=Verdict, thinking=mode
    )
    assert isinstance(message.parsed_output, Verdict)
    with sampler.messages.stream(
        model="tiny", max_tokens=200, messages=asked("hi"), output_format=Verdict, thinking=mode
    ) as stream:
        assert stream.get_final_message().parsed_output == message.parsed_output  # greedy


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "paint"}])
def test_a_model_that_knows_nothing_calls_the_function_that_it_must(
    sampler: anthropic.Anthropic, choice: dict[str, Any]
) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}}, "required": ["colour"]}
    tool: Any = {"name": "paint", "strict": True, "input_schema": {**schema, "additionalProperties": False}}
    how: Any = {**choice, "disable_parallel_tool_use": True}
    message = sampler.messages.create(
        model="tiny",
        max_tokens=200,
        messages=asked("hi"),
        tools=[tool],
        tool_choice=how,
        thinking={"type": "disabled"},
    )
    assert message.stop_reason == "tool_use"
    [block] = message.content
    assert block.type == "tool_use"
    assert block.input in ({"colour": "red"}, {"colour": "green"})


def test_counted_tokens_are_those_of_the_call(client: anthropic.Anthropic) -> None:
    options: Any = {"messages": asked("call add"), "system": "Be brief.", "tools": [TOOL], **THINK}
    counted = client.messages.count_tokens(model="tiny", **options)
    called = client.messages.create(model="tiny", max_tokens=2000, **options)
    assert counted.input_tokens == called.usage.input_tokens


def test_cached_tokens_are_told_apart_in_plain_and_streamed_usage(up: Live, client: anthropic.Anthropic) -> None:
    options: Any = {"model": "tiny", "max_tokens": 2000, "messages": asked("347 + 285?"), **THINK}
    whole = client.messages.create(**options).usage.input_tokens
    up.engine.cached_len = 3
    plain = client.messages.create(**options).usage
    with client.messages.stream(**options) as stream:
        streamed = stream.get_final_message().usage
    up.engine.cached_len = 0
    for usage in (plain, streamed):
        assert (usage.input_tokens, usage.cache_read_input_tokens) == (whole - 3, 3)


@pytest.mark.parametrize("stop", ["2", "🌊", "632 🌊"])
def test_the_stop_sequence_that_ended_a_message_is_named(client: anthropic.Anthropic, stop: str) -> None:
    """B119."""
    options: Any = {"model": "tiny", "max_tokens": 2000, "messages": asked("hi"), "stop_sequences": [stop, "never"]}
    plain = client.messages.create(**options, **THINK)
    with client.messages.stream(**options, **THINK) as stream:
        streamed = stream.get_final_message()
    for message in (plain, streamed):
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
        text = "".join(block.text for block in message.content if block.type == "text")
        assert text == "632 🌊".partition(stop)[0]


def test_the_limit_ends_a_message_as_max_tokens(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="tiny", max_tokens=3, messages=asked("hi"), extra_body={"ignore_eos": True}, **THINK
    )
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


def test_a_message_that_was_begun_is_continued(client: anthropic.Anthropic) -> None:
    history = [*asked("go on"), {"role": "assistant", "content": "one, two"}]
    message = client.messages.create(model="tiny", max_tokens=20, messages=history)
    assert [block.text for block in message.content if block.type == "text"] == [", three"]


def test_errors_arrive_as_the_clients_own_exceptions(up: Live, client: anthropic.Anthropic) -> None:
    options: Any = {"model": "tiny", "max_tokens": 10, "messages": asked("hi")}
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**{**options, "model": "claude-9"})
    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(**options, extra_body={"temperature": 9})
    assert (bad.value.type, bad.value.body["error"]["param"]) == ("invalid_request_error", "temperature")  # type: ignore[index]
    with (
        anthropic.Anthropic(base_url=up.url, api_key="wrong", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(**options)
    with pytest.raises(anthropic.BadRequestError, match="server tools"):
        client.messages.create(**options, tools=[{"type": "bash_20250124", "name": "bash"}])
    with pytest.raises(anthropic.NotFoundError, match="batch"):
        client.messages.batches.list()


@pytest.mark.anyio
async def test_a_full_server_is_an_error_that_the_client_waits_for_and_tries_again(live: Any) -> None:
    with live("a b c", step_s=0.01, max_open_sequences=1) as up:
        body = {"model": "tiny", "messages": asked("hi"), "max_tokens": 300, "ignore_eos": True}
        options: Any = {"model": "tiny", "max_tokens": 3, "messages": asked("hi")}
        async with anthropic.AsyncAnthropic(base_url=up.url, api_key="key", max_retries=0) as client:
            stream = await client.messages.create(**options | {"max_tokens": 300}, stream=True, extra_body=body)
            with pytest.raises(anthropic.RateLimitError) as full:
                await client.messages.create(**options)
            assert full.value.type == "rate_limit_error"
            await stream.close()
            message = await client.with_options(max_retries=3).messages.create(**options)
            assert message.stop_reason == "max_tokens"


def test_an_error_inside_a_stream_is_raised(live: Any) -> None:
    with live("a b c", step_s=0.02) as up, anthropic.Anthropic(base_url=up.url, api_key="key") as client:
        stream = client.messages.create(
            model="tiny", max_tokens=300, messages=asked("hi"), stream=True, extra_body={"ignore_eos": True}
        )
        next(stream)
        up.engine.failing = True
        with pytest.raises(anthropic.APIStatusError, match="could not finish") as failed:
            list(stream)
        assert failed.value.type == "overloaded_error"


def test_models_are_listed_with_the_fields_that_the_client_has(client: anthropic.Anthropic) -> None:
    [model] = list(client.models.list())
    assert (model.id, model.type, model.display_name) == ("tiny", "model", "tiny")
    assert model.created_at.year >= 2020
    assert client.models.retrieve("tiny").id == "tiny"


@pytest.mark.anyio
async def test_the_async_client_gets_what_the_sync_client_gets(up: Live, client: anthropic.Anthropic) -> None:
    options: Any = {"model": "tiny", "max_tokens": 2000, "messages": asked("call add"), "tools": [TOOL], **THINK}
    async with anthropic.AsyncAnthropic(base_url=up.url, auth_token="key", api_key=None, max_retries=0) as other:
        plain = await other.messages.create(**options)
        assert call_of(plain).input == call_of(client.messages.create(**options)).input
        async with other.messages.stream(**options) as stream:
            events = [event.type async for event in stream]
            final = await stream.get_final_message()
        assert "content_block_stop" in events
        assert call_of(final).input == call_of(plain).input
        assert plain._request_id
        counted = await other.messages.count_tokens(model="tiny", messages=asked("hi"))
        assert counted.input_tokens > 0
