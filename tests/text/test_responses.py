"""What only OpenAI's Responses have: repeated settings, sealed reasoning, hosted tools, items, numbered events."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import RequestError
from benthic.text import Event, Prompt, PromptEncoder, PromptSettings, ReplyStream, Tokenizer
from benthic.text.responses_fields import seal, unseal

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
CALL = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
    '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, context_len=4096, settings=PromptSettings(default_temperature=0.0))


def ask(encoder: PromptEncoder, **fields: Any) -> Prompt:
    return encoder.encode("responses", {"input": "hi", **fields})


def reply_to(prompt: Prompt, tokenizer: Tokenizer, markup: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events and the whole reply."""
    stream = ReplyStream(prompt, tokenizer, reply_id="resp_1")
    events: list[Event] = stream.start()
    for token_id in tokenizer.encode_markup(markup):
        events += stream.push(0, [token_id])
    events += stream.finish(0, "stop", 2) + stream.end()
    return [json.loads(event.data) for event in events if event.data != "[DONE]"], stream.body()


def test_settings_come_back_as_they_were_sent_and_sampling_as_it_was_done(
    tokenizer: Tokenizer, encoder: PromptEncoder
) -> None:
    sent = {
        "metadata": {"trace": "7"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "s",
        "max_tool_calls": 3,
        "user": "u",
        "top_p": 0.3,
        "presence_penalty": 0.5,
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    }
    other = {**FUNCTION, "name": "g"}
    events, body = reply_to(ask(encoder, tools=[FUNCTION, other], **sent), tokenizer, "</think>b")
    for response in (body, *(event["response"] for event in events if "response" in event)):
        assert {name: response[name] for name in sent} == sent
        assert [tool["name"] for tool in response["tools"]] == ["f", "g"]
        assert (response["temperature"], response["truncation"], response["store"]) == (0.0, "disabled", False)


def test_nothing_is_stored_whatever_is_asked_for(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    assert reply_to(ask(encoder, store=True), tokenizer, "b")[1]["store"] is False


@pytest.mark.parametrize(
    "kind", ["mcp", "file_search", "code_interpreter", "image_generation", "local_shell", "shell", "computer"]
)
def test_a_tool_that_a_server_would_have_to_run_is_refused_where_it_stands(encoder: PromptEncoder, kind: str) -> None:
    with pytest.raises(RequestError, match="runs no tools") as refused:
        ask(encoder, tools=[FUNCTION, {"type": kind}])
    assert refused.value.param == "tools[1].type"


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview", "web_search_2025_08_26"])
def test_a_web_search_is_left_out_and_the_reply_shows_it(
    tokenizer: Tokenizer, encoder: PromptEncoder, kind: str
) -> None:
    prompt = ask(encoder, tools=[{"type": kind}, FUNCTION])
    assert prompt.token_ids == ask(encoder, tools=[FUNCTION]).token_ids
    assert [tool["type"] for tool in reply_to(prompt, tokenizer, "b")[1]["tools"]] == ["function"]


@pytest.mark.parametrize("kind", ["compaction", "item_reference", "mcp_call", "computer_call", "no_such_item"])
def test_an_item_that_the_model_could_not_read_is_refused_where_it_stands(encoder: PromptEncoder, kind: str) -> None:
    with pytest.raises(RequestError) as refused:
        ask(encoder, input=[{"role": "user", "content": "hi"}, {"type": kind, "id": "x"}])
    assert refused.value.param == "input[1].type"


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("previous_response_id", "resp_1", "not stored"),
        ("conversation", "conv_1", "not stored"),
        ("prompt", {"id": "p"}, "not stored"),
        ("background", True, "waits"),
        ("n", 2, "ask several times"),
    ],
)
def test_what_would_change_the_reply_is_refused_with_the_reason(
    encoder: PromptEncoder, field: str, value: Any, word: str
) -> None:
    with pytest.raises(RequestError, match=word) as refused:
        ask(encoder, **{field: value})
    assert refused.value.param == field


def test_reasoning_comes_back_from_a_client_that_keeps_only_the_sealed_form(
    tokenizer: Tokenizer, encoder: PromptEncoder
) -> None:
    fields = {"tools": [FUNCTION], "reasoning": {"effort": "low"}}
    prompt = ask(encoder, include=["reasoning.encrypted_content"], **fields)
    events, body = reply_to(prompt, tokenizer, "so 你😀</think>\n\n" + CALL)
    [done] = [
        e["item"] for e in events if e["type"] == "response.output_item.done" and e["item"]["type"] == "reasoning"
    ]
    reasoning, call = body["output"]
    assert done["encrypted_content"] == reasoning["encrypted_content"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "5"}
    kept = {"type": "reasoning", "summary": [], "encrypted_content": reasoning["encrypted_content"]}
    asked = {"role": "user", "content": "hi"}
    sealed = ask(encoder, **{**fields, "input": [asked, kept, call, result]})
    whole = ask(encoder, **{**fields, "input": [asked, reasoning, call, result]})
    assert sealed.token_ids == whole.token_ids
    assert "so 你😀" in tokenizer.decode(sealed.token_ids)


def test_items_of_three_turns_are_the_prompt_that_the_same_chat_has(encoder: PromptEncoder) -> None:
    """B101: reasoning items are the reasoning of the assistant's next words, not words of their own."""
    thought = [{"type": "reasoning_text", "text": "look it up"}]
    items = [
        {"role": "user", "content": "hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "greet"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hello", "annotations": []}],
        },
        {"role": "user", "content": "f of 3?"},
        {"type": "reasoning", "summary": [], "content": thought},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"n": 3}'},
        {"type": "function_call_output", "call_id": "c1", "output": "9"},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"n": 3}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello", "reasoning_content": "greet"},
        {"role": "user", "content": "f of 3?"},
        {"role": "assistant", "content": None, "reasoning_content": "look it up", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "9"},
    ]
    chat_tool = {"type": "function", "function": {name: FUNCTION[name] for name in ("name", "parameters")}}
    chat = encoder.encode("chat", {"messages": messages, "tools": [chat_tool], "thinking": True})
    assert ask(encoder, input=items, tools=[FUNCTION], thinking=True).token_ids == chat.token_ids


def test_reasoning_is_not_sealed_unless_asked_for(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    events, body = reply_to(ask(encoder, thinking=True), tokenizer, "so</think>b")
    assert "encrypted_content" not in json.dumps([events, body])


@given(st.text(st.characters(codec="utf-8")))
def test_what_was_sealed_is_opened_again(text: str) -> None:
    assert unseal(seal(text)) == text


@pytest.mark.parametrize(
    "word",
    [None, 3, "", "resp_1-0", "benthic1.", "benthic1.!!", "benthic1._w==", "benthic1.Y2Fy\uff5ceQ==", "gAAAA"],
)
def test_a_seal_of_another_server_is_left_closed(word: Any) -> None:
    assert unseal(word) in (None, "")


def test_log_probabilities_may_be_asked_for_by_include(encoder: PromptEncoder) -> None:
    include = ["message.output_text.logprobs"]
    assert ask(encoder).sampling.logprobs is None
    assert ask(encoder, include=include).sampling.logprobs == 0
    assert ask(encoder, include=include, top_logprobs=3).sampling.logprobs == 3
    with pytest.raises(RequestError) as refused:
        ask(encoder, include="message.output_text.logprobs")
    assert refused.value.param == "include"


def test_events_are_numbered_without_a_gap_and_none_says_nothing(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    prompt = ask(encoder, thinking=True, tools=[FUNCTION])
    for markup in ("so</think>b<｜end▁of▁sentence｜>", "so</think>b\n\n" + CALL, "<｜User｜>so</think>"):
        events, _ = reply_to(prompt, tokenizer, markup)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert all(event["delta"] for event in events if event["type"].endswith(".delta"))


@pytest.mark.parametrize(("markup", "name"), [(CALL.replace(">3<", ">three<"), "f"), (CALL.replace('"f"', '"g"'), "g")])
def test_a_call_that_cannot_be_carried_out_is_an_incomplete_item(
    tokenizer: Tokenizer, encoder: PromptEncoder, markup: str, name: str
) -> None:
    prompt = ask(encoder, tools=[FUNCTION])
    for text, status in ((markup, "incomplete"), (CALL, "completed")):
        events, body = reply_to(prompt, tokenizer, text)
        [call] = body["output"]
        assert (call["name"], call["status"]) == (name if text == markup else "f", status)
        [done] = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert done == call == events[-1]["response"]["output"][0]


def test_a_reply_that_breaks_off_ends_as_failed_with_what_there_is(
    tokenizer: Tokenizer, encoder: PromptEncoder
) -> None:
    stream = ReplyStream(ask(encoder, metadata={"a": "b"}), tokenizer, reply_id="resp_1")
    events = stream.start() + stream.push(0, tokenizer.encode("hello"))
    [failed] = stream.fail("the engine died", error_type="rate_limit_error", code="server_overloaded")
    data = json.loads(failed.data)
    assert failed.name == data["type"] == "response.failed"
    assert data["sequence_number"] == len(events)
    assert data["response"]["status"] == "failed"
    assert data["response"]["metadata"] == {"a": "b"}
    assert data["response"]["error"] == {
        "code": "rate_limit_exceeded",
        "message": "the engine died",
        "type": "server_overloaded",
    }


@pytest.mark.parametrize(
    "markup", ["so it is</think>b", "only thoughts", "</think>b", "so\n\n" + CALL, "a</think>b</think>"]
)
def test_every_protocol_counts_the_same_tokens_of_reasoning(
    tokenizer: Tokenizer, encoder: PromptEncoder, markup: str
) -> None:
    usages = {}
    for protocol, body in (
        (
            "chat",
            {
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [{"type": "function", "function": {"name": "f"}}],
            },
        ),
        ("responses", {"input": "hi", "tools": [FUNCTION]}),
        (
            "messages",
            {
                "messages": [{"role": "user", "content": "hi"}],
                "tools": [{"name": "f", "input_schema": {"type": "object"}}],
            },
        ),
    ):
        prompt = encoder.encode(protocol, {**body, "thinking": True})  # type: ignore[arg-type]
        events, whole = reply_to(prompt, tokenizer, markup)
        usages[protocol] = whole["usage"]
        assert usages[protocol]["prompt_cache_hit_tokens"] == 2
        assert usages[protocol]["prompt_cache_miss_tokens"] == len(prompt.token_ids) - 2
        if protocol == "responses":
            assert events[-1]["response"]["usage"] == whole["usage"]
    counted = usages["chat"]["completion_tokens_details"]["reasoning_tokens"]
    assert usages["responses"]["output_tokens_details"]["reasoning_tokens"] == counted
    assert usages["messages"]["output_tokens_details"]["thinking_tokens"] == counted
