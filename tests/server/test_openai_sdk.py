"""OpenAI's own client, sync and async, at every endpoint that it has here, and the wire beside it.

The client checks nothing that it receives, so each kind of answer is also held against the client's types.
"""

import json
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
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
    "call add": "carry</think>Let me see.\n\n" + CALL,
    "as JSON": '</think>{"name": "Ada", "born": 1815}' + EOS,
    "": "carry 🤔</think>632 🌊" + EOS,
}
PARAMETERS: Any = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}
TOOL: Any = {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False}
THINK: Any = {"extra_body": {"thinking": {"type": "enabled"}}}
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


class Person(BaseModel):
    name: str
    born: int


class Add(BaseModel):
    a: int
    b: int


class Verdict(BaseModel):
    """Short however it is filled in."""

    colour: Literal["red", "green", "blue"]
    is_sure: bool


class Paint(BaseModel):
    colour: Literal["red", "green"]


def asked(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def up(tokenizer: Tokenizer) -> Iterator[Live]:
    """A server that answers by what is asked."""
    engine = ScriptedEngine(answers_by_prompt(tokenizer, ANSWERS), tokenizer=tokenizer, context_len=4096)
    with Live(build(engine, ServerConfig()), engine) as live:
        yield live


@pytest.fixture(scope="module")
def real(model: Transformer) -> Iterator[Live]:
    """A server over the random model."""
    engine = Engine(model, EngineConfig(max_num_seqs=8, max_model_len=CONTEXT_LEN, debug_checks=True), masks=MASKS)
    with Live(build(engine, ServerConfig()), engine) as live:
        yield live


@pytest.fixture
def client(up: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{up.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
def sampler(real: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def wire(up: Live, path: str, **body: Any) -> Any:
    """The body of a plain answer, or the data of a stream's frames."""
    response = httpx.post(f"{up.url}/v1/{path}", json={"model": "tiny", **body}, timeout=30)
    assert response.status_code == 200, response.text
    if not body.get("stream"):
        return response.json()
    frames = [frame for frame in response.text.split("\n\n") if frame and not frame.startswith(":")]
    return [frame.rpartition("data: ")[2] for frame in frames]


# Chat


def test_a_chat_is_the_same_plain_streamed_and_on_the_wire(up: Live, client: openai.OpenAI) -> None:
    plain = client.chat.completions.create(model="tiny", messages=asked("347 + 285?"), **THINK)
    message = plain.choices[0].message
    assert (message.content, plain.choices[0].finish_reason) == ("632 🌊", "stop")
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "carry 🤔"
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="tiny", messages=asked("347 + 285?"), **THINK, **options))
    deltas = [choice.delta for chunk in chunks for choice in chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert "".join((delta.model_extra or {}).get("reasoning_content") or "" for delta in deltas) == "carry 🤔"
    assert [chunk.usage for chunk in chunks if chunk.usage] == [plain.usage]
    assert plain.usage is not None
    assert plain.usage.completion_tokens_details is not None
    assert plain.usage.completion_tokens_details.reasoning_tokens
    *frames, done = wire(up, "chat/completions", messages=asked("x"), thinking=True, **options)
    assert done == "[DONE]"
    for frame in frames:
        ChatCompletionChunk.model_validate_json(frame)
    ChatCompletion.model_validate(wire(up, "chat/completions", messages=asked("x"), logprobs=True, top_logprobs=2))


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "add"}}])
def test_a_chat_tool_goes_round_twice(up: Live, client: openai.OpenAI, choice: Any) -> None:
    thinks = choice == "auto"
    off: Any = {"extra_body": {"thinking": {"type": "disabled"}}}
    history = asked("call add")
    for _ in range(2):
        if not thinks:  # the reply begins inside the call
            up.engine.said = CALL.partition("\n")[2]
        options: Any = {"model": "tiny", "tools": [CHAT_TOOL], **(THINK if thinks else off)}
        reply = client.chat.completions.create(messages=history, tool_choice=choice, **options).choices[0]
        assert reply.finish_reason == "tool_calls"
        [call] = reply.message.tool_calls or []
        assert call.type == "function"
        assert json.loads(call.function.arguments) == {"a": 347, "b": 285}
        result: Any = {"role": "tool", "tool_call_id": call.id, "content": "632, said the tool"}
        history = [*history, reply.message.model_dump(exclude_none=True), result]
        up.engine.said = answers_by_prompt(up.service.tokenizer, ANSWERS)
        answer = client.chat.completions.create(messages=history, **{**options, **THINK}).choices[0].message
        assert answer.content == "It is 632."
        history = [*history, answer.model_dump(exclude_none=True), *asked("again: call add")]
        up.engine.said = answers_by_prompt(up.service.tokenizer, {"again": ANSWERS["call add"], **ANSWERS})
    up.engine.said = answers_by_prompt(up.service.tokenizer, ANSWERS)


def test_chat_answers_are_parsed_into_the_callers_types(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(model="tiny", messages=asked("as JSON"), response_format=Person, **THINK)
    assert parsed.choices[0].message.parsed == Person(name="Ada", born=1815)
    tool = openai.pydantic_function_tool(Add, name="add")
    called = client.chat.completions.parse(model="tiny", messages=asked("call add"), tools=[tool], **THINK)
    [call] = called.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == Add(a=347, b=285)


@pytest.mark.parametrize("thinking", [False, True])
def test_a_model_that_knows_nothing_answers_in_the_callers_types(sampler: openai.OpenAI, thinking: bool) -> None:
    body = {"thinking": thinking, "thinking_budget": 5, "temperature": 1.0, "seed": 3}
    options: Any = {"model": "tiny", "extra_body": body}
    chat = sampler.chat.completions.parse(messages=asked("hi"), response_format=Verdict, **options)
    assert isinstance(chat.choices[0].message.parsed, Verdict)
    response = sampler.responses.parse(input="hi", text_format=Verdict, **options)
    assert isinstance(response.output_parsed, Verdict)


def test_a_model_that_knows_nothing_calls_the_function_that_it_must(sampler: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "extra_body": {"thinking": False, "temperature": 1.0, "seed": 3}}
    options["parallel_tool_calls"] = False
    chat_tool = openai.pydantic_function_tool(Paint, name="paint")
    chat = sampler.chat.completions.parse(
        messages=asked("hi"), tools=[chat_tool], tool_choice="required", **options
    ).choices[0]
    assert chat.finish_reason == "tool_calls"
    [call] = chat.message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Paint)
    tool: Any = {**chat_tool["function"], "type": "function"}
    forced: Any = {"type": "function", "name": "paint"}
    response = sampler.responses.create(input="hi", tools=[tool], tool_choice=forced, **options)
    [item] = response.output
    assert (item.type, item.status) == ("function_call", "completed")
    assert Paint.model_validate_json(item.arguments)


def test_chat_log_probabilities_are_those_of_the_tokens_shown(sampler: openai.OpenAI) -> None:
    off: Any = {"extra_body": {"thinking": {"type": "disabled"}}}
    options: Any = {"model": "tiny", "messages": asked("hi"), "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    plain = client_choice(sampler, **options, **off)
    assert plain.logprobs is not None
    entries = plain.logprobs.content
    assert [len(entry.top_logprobs) for entry in entries] == [3] * len(entries)
    assert all(entry.logprob == entry.top_logprobs[0].logprob <= 0 for entry in entries)  # greedy by default
    chunks = list(sampler.chat.completions.create(**options, **off, stream=True))
    streamed = [entry for c in chunks for choice in c.choices if choice.logprobs for entry in choice.logprobs.content]
    assert streamed == entries


def client_choice(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**options).choices[0]


def test_chat_choices_have_seeds_of_their_own_streamed_or_not(sampler: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "messages": asked("hi"), "max_tokens": 8, "temperature": 1.0}
    many = sampler.chat.completions.create(**options, n=3, seed=5)
    texts = [choice.message.model_dump() for choice in many.choices]
    assert [choice.index for choice in many.choices] == [0, 1, 2]
    assert len({json.dumps(text) for text in texts}) == 3
    alone = [client_choice(sampler, **options, seed=5 + i).message.model_dump() for i in range(3)]
    assert texts == alone
    streamed = {0: "", 1: "", 2: ""}
    for chunk in sampler.chat.completions.create(**options, n=3, seed=5, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert [streamed[i] for i in range(3)] == [text["content"] for text in texts]
    assert many.usage is not None
    assert many.usage.completion_tokens <= 24


# Responses


def test_a_response_is_the_same_plain_streamed_and_on_the_wire(up: Live, client: openai.OpenAI) -> None:
    plain = client.responses.create(model="tiny", input="347 + 285?", **THINK)
    assert (plain.status, plain.output_text) == ("completed", "632 🌊")
    assert plain.id.startswith("resp_")
    with client.responses.stream(model="tiny", input="347 + 285?", **THINK) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output_text == plain.output_text
    assert final.usage == plain.usage
    assert plain.usage is not None
    assert plain.usage.output_tokens_details.reasoning_tokens
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == plain.output_text
    thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thoughts) == "carry 🤔"
    for frame in wire(up, "responses", input="x", tools=[TOOL], thinking=True, top_logprobs=1, stream=True):
        EVENTS.validate_json(frame)
    Response.model_validate(wire(up, "responses", input="x", tools=[TOOL], thinking=True, top_logprobs=1))


@pytest.mark.parametrize("kept", ["whole", "sealed"])
def test_a_response_is_sent_back_with_what_its_tool_said(up: Live, client: openai.OpenAI, kept: str) -> None:
    options: Any = {"model": "tiny", "tools": [TOOL], **THINK}
    if kept == "sealed":
        options["include"] = ["reasoning.encrypted_content"]
    first = client.responses.create(input="call add", **options)
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    call: Any = first.output[-1]
    assert json.loads(call.arguments) == {"a": 347, "b": 285}
    items: Any = [item.model_dump(exclude_none=True) for item in first.output]
    if kept == "sealed":
        del items[0]["content"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "632, said the tool"}
    second = client.responses.create(input=[*asked("call add"), *items, result], **options)
    assert second.output_text == "It is 632."
    sent = up.service.tokenizer.decode(list(up.engine.requests[-1].prompt_ids))
    assert "<think>carry</think>Let me see." in sent


def test_responses_are_parsed_into_the_callers_types(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="tiny", input="as JSON", text_format=Person, **THINK)
    assert parsed.output_parsed == Person(name="Ada", born=1815)
    tool = openai.pydantic_function_tool(Add, name="add")
    called: Any = client.responses.parse(model="tiny", input="call add", tools=[tool], **THINK).output[-1]  # type: ignore[list-item]
    assert called.parsed_arguments == Add(a=347, b=285)


def test_response_log_probabilities_come_when_included(sampler: openai.OpenAI) -> None:
    off: Any = {"extra_body": {"thinking": False}}
    options: Any = {"model": "tiny", "input": "hi", "max_output_tokens": 5, **off}
    response = sampler.responses.create(**options, include=["message.output_text.logprobs"], top_logprobs=2)
    part: Any = response.output[0].content[0]  # type: ignore[union-attr]
    assert part.logprobs
    assert [len(entry.top_logprobs) for entry in part.logprobs] == [2] * len(part.logprobs)


def test_a_response_cut_by_its_limit_is_incomplete_plain_and_streamed(client: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "input": "hi", "max_output_tokens": 16, "extra_body": {"ignore_eos": True}}
    plain = client.responses.create(**options)
    last = list(client.responses.create(**options, stream=True))[-1]
    assert last.type == "response.incomplete"
    for response in (plain, last.response):
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.usage is not None
        assert response.usage.output_tokens == 16


def test_a_response_that_breaks_off_ends_as_failed(live: Any) -> None:
    with live("a b c", step_s=0.02) as up, openai.OpenAI(base_url=f"{up.url}/v1", api_key="any") as client:
        stream = client.responses.create(
            model="tiny", input="hi", stream=True, max_output_tokens=300, extra_body={"ignore_eos": True}
        )
        next(stream)
        up.engine.failing = True
        last: Any = list(stream)[-1]
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert "could not finish" in last.response.error.message


def test_what_responses_cannot_do_is_said_in_the_clients_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="not stored") as stored:
        client.responses.create(model="tiny", input="hi", previous_response_id="resp_1")
    assert stored.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError, match="not stored"):
        client.responses.retrieve("resp_1")
    with pytest.raises(openai.NotFoundError, match="embeddings"):
        client.embeddings.create(model="tiny", input="hi")


def test_input_tokens_are_counted_as_the_call_counts_them(client: openai.OpenAI) -> None:
    counted = client.responses.input_tokens.count(model="tiny", input="call add", tools=[TOOL])
    called = client.responses.create(model="tiny", input="call add", tools=[TOOL])
    assert called.usage is not None
    assert counted.input_tokens == called.usage.input_tokens


# Completions and models


def test_completions_continue_texts_and_ids_plain_and_streamed(up: Live, sampler: openai.OpenAI) -> None:
    options: Any = {"model": "tiny", "max_tokens": 4, "temperature": 0, "logprobs": 2, "echo": True}
    ids = up.service.tokenizer.encode("one two")
    plain = sampler.completions.create(prompt=[ids, ids], **options)
    assert [choice.index for choice in plain.choices] == [0, 1]
    assert plain.choices[0].text == plain.choices[1].text
    assert plain.choices[0].logprobs is not None
    assert plain.choices[0].logprobs.token_logprobs is not None
    assert plain.choices[0].logprobs.token_logprobs[0] is None
    assert plain.choices[0].text == sampler.completions.create(prompt="one two", **options).choices[0].text
    texts = ["", ""]
    for chunk in sampler.completions.create(prompt=[ids, ids], **options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in plain.choices]
    Completion.model_validate(wire(up, "completions", prompt="x", max_tokens=2))
    with pytest.raises(openai.BadRequestError) as refused:
        sampler.completions.create(model="tiny", prompt="a", suffix="b")
    assert refused.value.param == "suffix"


def test_models_and_request_names_are_what_the_client_expects(up: Live, client: openai.OpenAI) -> None:
    [model] = client.models.list()
    assert model == client.models.retrieve("tiny")
    Model.model_validate(wire_of(up, "models/tiny"))
    sent = client.chat.completions.create(model="tiny", messages=asked("hi"), extra_headers={"x-request-id": "t-1"})
    assert sent._request_id == "t-1"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.models.retrieve("gpt")
    assert unknown.value.request_id


def wire_of(up: Live, path: str) -> Any:
    return httpx.get(f"{up.url}/v1/{path}").json()


# Async


@pytest.mark.anyio
async def test_the_async_client_gets_what_the_sync_client_gets(up: Live, client: openai.OpenAI) -> None:
    async with openai.AsyncOpenAI(base_url=f"{up.url}/v1", api_key="any", max_retries=0) as other:
        chat = await other.chat.completions.create(model="tiny", messages=asked("call add"), tools=[CHAT_TOOL], **THINK)
        same = client.chat.completions.create(model="tiny", messages=asked("call add"), tools=[CHAT_TOOL], **THINK)
        [call], [expected] = chat.choices[0].message.tool_calls or [], same.choices[0].message.tool_calls or []
        assert call.function == expected.function  # type: ignore[union-attr]
        async with other.chat.completions.stream(model="tiny", messages=asked("hi"), **THINK) as stream:
            contents = [event.delta async for event in stream if event.type == "content.delta"]
            whole = await stream.get_final_completion()
        assert "".join(contents) == whole.choices[0].message.content == "632 🌊"
        response = await other.responses.create(model="tiny", input="hi", **THINK)
        assert response.output_text == "632 🌊"
        async with other.responses.stream(model="tiny", input="hi", **THINK) as events:
            async for _ in events:
                pass
            assert (await events.get_final_response()).output_text == "632 🌊"
        text = await other.completions.create(model="tiny", prompt="hi", max_tokens=3)
        assert text.usage is not None
        assert text.usage.completion_tokens == 3
        assert [model.id async for model in other.models.list()] == ["tiny"]
