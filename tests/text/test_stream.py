import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benthic.text import Event, Prompt, PromptEncoder, ReplyStream, Tokenizer, read_reply, render_reply
from benthic.text.protocol_fields import MAX_TOKENS_FIELD

USER = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
TOOLS: dict[str, list[dict[str, Any]]] = {
    "chat": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}],
    "responses": [{"type": "function", "name": "f", "parameters": PARAMETERS}],
    "messages": [{"name": "f", "input_schema": PARAMETERS}],
}
VALUE = 'x "q"\n\\ </b> 你😀 <'
ONE_CALL = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n'
    f'<｜DSML｜parameter name="a" string="true">{VALUE}</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="n" string="false">3</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
TWO_CALLS = ONE_CALL.replace("</｜DSML｜tool_calls>", ONE_CALL.partition("\n")[2])
REPLIES = {
    "answer": "r</think>hello 你好 😀",
    "no close": "only thoughts",
    "immediate close": "</think>b",
    "two closes": "a</think>b</think>c",
    "call": "r</think>hi\n\n" + ONE_CALL,
    "two calls": "r</think>" + TWO_CALLS,
    "call while thinking": "r\n\n" + ONE_CALL,
    "no arguments": (
        'r</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>'
    ),
    "bad json": "</think>" + ONE_CALL.replace(">3<", ">abc<"),
    "empty block": "</think>a\n\n<｜DSML｜tool_calls>\n</｜DSML｜tool_calls>b",
    "unfinished block": "</think>a\n\n" + ONE_CALL[:120],
    "newlines": "\n\nr\n\n</think>\n\nb\n\n",
}


@pytest.fixture(scope="session")
def encoder(tokenizer: Tokenizer) -> PromptEncoder:
    return PromptEncoder(tokenizer, context_len=4096)


def ask(encoder: PromptEncoder, protocol: Any = "chat", **fields: Any) -> Prompt:
    body: dict[str, Any] = {"input": "hi"} if protocol == "responses" else {"messages": USER}
    return encoder.encode(protocol, {**body, "tools": TOOLS[protocol], "thinking": True, **fields})


def stream_of(
    prompt: Prompt, tokenizer: Tokenizer, pieces: list[list[int]], reason: Any = "stop"
) -> tuple[list[Event], ReplyStream]:
    stream = ReplyStream(prompt, tokenizer, reply_id="id")
    events = stream.start(cached_len=2)
    for piece in pieces:
        events += stream.push(0, piece)
    return events + stream.finish(0, reason) + stream.end(), stream


def joined(events: list[Event]) -> dict[str, Any]:
    """The reply that a client puts together from chat events."""
    reply: dict[str, Any] = {"reasoning": "", "content": "", "calls": {}, "finish": []}
    for event in events:
        data = json.loads(event.data) if event.data != "[DONE]" else {"choices": []}
        for choice in data["choices"]:
            reply["reasoning"] += choice["delta"].get("reasoning_content") or ""
            reply["content"] += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls") or ():
                name, arguments = reply["calls"].get(call["index"], ("", ""))
                function = call["function"]
                reply["calls"][call["index"]] = (function.get("name") or name, arguments + function["arguments"])
            reply["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
    return reply


def cut(ids: list[int], cuts: list[int]) -> list[list[int]]:
    borders = [0, *sorted(min(c, len(ids)) for c in cuts), len(ids)]
    return [ids[a:b] for a, b in zip(borders, borders[1:], strict=False)]


CUTS = st.lists(st.integers(0, 200), max_size=20)


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_every_cut_of_the_ids_streams_what_the_plain_reply_says(
    tokenizer: Tokenizer, encoder: PromptEncoder, name: str, reason: Any
) -> None:
    ids = tokenizer.encode_markup(REPLIES[name])
    plain = read_reply(ask(encoder), tokenizer, ids, reason)

    @given(cuts=CUTS)
    def check(cuts: list[int]) -> None:
        events, stream = stream_of(ask(encoder), tokenizer, cut(ids, cuts), reason)
        reply = joined(events)
        assert (reply["reasoning"], reply["content"]) == (plain.reasoning, plain.content)
        assert tuple(reply["calls"].values()) == plain.tool_calls
        assert reply["finish"] == [plain.finish_reason]
        assert stream.body()["choices"][0]["message"].get("content", "") == plain.content

    check()


@pytest.mark.parametrize(
    ("name", "reasoning", "content", "num_calls", "finish"),
    [
        ("answer", "r", "hello 你好 😀", 0, "stop"),
        ("no close", "only thoughts", "", 0, "stop"),
        ("immediate close", "", "b", 0, "stop"),
        ("two closes", "a", "bc", 0, "stop"),
        ("call", "r", "hi", 1, "tool_calls"),
        ("two calls", "r", "", 2, "tool_calls"),
        ("call while thinking", "r", "", 1, "tool_calls"),
        ("no arguments", "r", "", 1, "tool_calls"),
        ("bad json", "", "", 1, "stop"),
        ("empty block", "", "a\n\nb", 0, "stop"),
        ("unfinished block", "", "a", 1, "stop"),
        ("newlines", "r", "b\n\n", 0, "stop"),
    ],
)
def test_replies_are_read_as_the_table_says(
    tokenizer: Tokenizer, encoder: PromptEncoder, name: str, reasoning: str, content: str, num_calls: int, finish: str
) -> None:
    reply = read_reply(ask(encoder), tokenizer, tokenizer.encode_markup(REPLIES[name]))
    assert (reply.reasoning, reply.content) == (reasoning, content)
    assert (len(reply.tool_calls), reply.finish_reason) == (num_calls, finish)


NAMES = st.text(alphabet="abcXYZ_-09", min_size=1, max_size=8)
STRINGS = st.text(max_size=30).filter(lambda s: "｜DSML｜parameter" not in s) | st.sampled_from(
    ["</b>", '"', "\n", "你", "</"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=5,
)


@given(
    reasoning=st.text(alphabet="ab 你", max_size=10),
    content=st.text(alphabet="ab 你>", max_size=10),
    calls=st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=3),
)
def test_what_is_rendered_as_a_reply_is_read_back(
    tokenizer: Tokenizer, encoder: PromptEncoder, reasoning: str, content: str, calls: list[dict[str, Any]]
) -> None:
    rendered = render_reply(
        thinking=True,
        reasoning=reasoning,
        content=content,
        tool_calls=[{"name": "f", "arguments": arguments} for arguments in calls],
    )
    reply = read_reply(ask(encoder), tokenizer, rendered.encode(tokenizer))
    assert (reply.reasoning, reply.content) == (reasoning, content)
    assert [(name, json.loads(arguments)) for name, arguments in reply.tool_calls] == [("f", a) for a in calls]
    assert reply.finish_reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_a_reply_may_end_after_any_token(tokenizer: Tokenizer, encoder: PromptEncoder, protocol: Any) -> None:
    ids = tokenizer.encode_markup(REPLIES["two calls"])
    for length in range(len(ids) + 1):
        _, stream = stream_of(
            ask(encoder, protocol, **{MAX_TOKENS_FIELD[protocol]: 500}), tokenizer, [ids[:length]], "length"
        )
        body = json.dumps(stream.body(), ensure_ascii=False)
        text = body if protocol != "chat" else stream.body()["choices"][0]["message"]["content"]
        assert "｜" not in text.replace("<｜", "｜") and "<｜" not in text
        if protocol == "chat":
            whole = length == len(ids)  # the block closed, so the model had ended before the limit
            assert stream.body()["choices"][0]["finish_reason"] == ("tool_calls" if whole else "length")


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_the_three_protocols_say_the_same(tokenizer: Tokenizer, encoder: PromptEncoder, protocol: Any) -> None:
    events, stream = stream_of(
        ask(encoder, protocol, stream=True), tokenizer, [tokenizer.encode_markup(REPLIES["call"])]
    )
    body = stream.body()
    arguments = {"a": VALUE, "n": 3}
    if protocol == "chat":
        message = body["choices"][0]["message"]
        call = message["tool_calls"][0]["function"]
        assert (message["reasoning_content"], message["content"]) == ("r", "hi")
        assert (call["name"], json.loads(call["arguments"])) == ("f", arguments)
        assert events[-1] == Event(None, "[DONE]")
    if protocol == "responses":
        thought, message, call = body["output"]
        assert (thought["content"][0]["text"], message["content"][0]["text"]) == ("r", "hi")
        assert (call["name"], json.loads(call["arguments"])) == ("f", arguments)
        assert [json.loads(event.data)["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1].name == "response.completed"
    if protocol == "messages":
        thought, text, call = body["content"]
        assert (thought["thinking"], text["text"], call["name"], call["input"]) == ("r", "hi", "f", arguments)
        assert body["stop_reason"] == "tool_use"
        assert events[-1].name == "message_stop"


JSON_REPLIES = ['{"a": "x", "b": [1, {"c": null}]}', '{\n  "a": "你 ```"\n}', "[]", '{"a": 1}\n']


@pytest.mark.parametrize("text", JSON_REPLIES)
@pytest.mark.parametrize("thinking", [False, True])
def test_json_asked_for_arrives_whole(tokenizer: Tokenizer, encoder: PromptEncoder, text: str, thinking: bool) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    prompt = encoder.encode("chat", {"messages": USER, "thinking": thinking, "response_format": form})
    ids = render_reply(thinking=thinking, reasoning="r" if thinking else "", content=text).encode(tokenizer)
    for pieces in ([ids], [[i] for i in ids]):
        events, _ = stream_of(prompt, tokenizer, pieces)
        assert json.loads(joined(events)["content"]) == json.loads(text)


# The end


def test_what_follows_the_tool_calls_is_not_read(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    stream = ReplyStream(ask(encoder), tokenizer, reply_id="id")
    stream.start()
    stream.push(0, tokenizer.encode_markup(REPLIES["call"]))
    assert stream.is_finished(0)
    assert stream.push(0, tokenizer.encode("more")) == [] == stream.finish(0, "length")
    assert stream.usage()["completion_tokens"] == len(tokenizer.encode_markup(REPLIES["call"]))


def test_a_token_that_closes_the_calls_and_goes_on_closes_them(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    ids = tokenizer.encode_markup(REPLIES["call"].removesuffix(">") + ">>")
    assert b">>" in map(tokenizer.token_bytes, ids)
    assert read_reply(ask(encoder), tokenizer, ids).finish_reason == "tool_calls"
    stream = ReplyStream(ask(encoder), tokenizer, reply_id="id")
    stream.start()
    stream.push(0, ids)
    assert stream.is_finished(0)


@pytest.mark.parametrize("size", [1, 100])
def test_a_stop_string_ends_the_answer_and_not_the_thoughts(
    tokenizer: Tokenizer, encoder: PromptEncoder, size: int
) -> None:
    prompt = ask(encoder, stop=["STOP", "</b>"])
    ids = tokenizer.encode_markup("a STOP</think>b</c> bSTOPc")
    stream = ReplyStream(prompt, tokenizer, reply_id="id")
    stream.start()
    for start in range(0, len(ids), size):
        stream.push(0, ids[start : start + size])
    assert stream.is_finished(0)
    choice = stream.body()["choices"][0]
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("a STOP", "b</c> b")
    assert choice["finish_reason"] == "stop"
    assert stream.usage()["completion_tokens"] == len(ids) - 1


def test_anthropic_is_told_which_stop_string_matched(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    prompt = ask(encoder, "messages", stop_sequences=["STOP"])
    _, stream = stream_of(prompt, tokenizer, [tokenizer.encode_markup("STOP</think>aSTOPb")])
    assert (stream.body()["stop_reason"], stream.body()["stop_sequence"]) == ("stop_sequence", "STOP")


def test_the_end_token_and_turn_markers_are_counted_and_not_shown(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    ids = tokenizer.encode_markup("a</think>b<｜User｜>c<｜end▁of▁sentence｜>")
    _, stream = stream_of(ask(encoder), tokenizer, [ids])
    assert stream.body()["choices"][0]["message"]["content"] == "bc"
    assert stream.usage()["completion_tokens"] == len(ids)


def test_an_unfinished_character_is_one_replacement_for_every_reason(
    tokenizer: Tokenizer, encoder: PromptEncoder, bytes_to_ids: list[int]
) -> None:
    half = [bytes_to_ids[byte] for byte in "a😀".encode()[:-1]]
    for reason in ("stop", "length"):
        for end in ([], [tokenizer.eos_token_id]):
            ids = [*tokenizer.encode_markup("r</think>"), *half, *end]
            _, stream = stream_of(ask(encoder), tokenizer, [[i] for i in ids], reason)
            assert stream.body()["choices"][0]["message"]["content"] == "a\ufffd"
            assert stream.usage()["completion_tokens"] == len(ids)


@given(data=st.binary(max_size=40), cuts=CUTS)
def test_any_bytes_are_shown_as_they_decode(
    tokenizer: Tokenizer, encoder: PromptEncoder, bytes_to_ids: list[int], data: bytes, cuts: list[int]
) -> None:
    ids = [bytes_to_ids[byte] for byte in data]
    prompt = encoder.encode("chat", {"messages": USER, "thinking": False})
    events, stream = stream_of(prompt, tokenizer, cut(ids, cuts), "length")
    text = tokenizer.decode(ids)
    assert joined(events)["content"] == text.lstrip("\n")  # leading newlines of an answer are not shown
    assert stream.usage()["completion_tokens"] == len(ids)


def test_broken_arguments_are_reported(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    ids = tokenizer.encode_markup(REPLIES["bad json"])
    events, stream = stream_of(ask(encoder), tokenizer, [ids])
    (error,) = stream.tool_call_errors(0)
    assert (error.name, error.arguments.endswith('"n": abc}')) == ("f", True)
    choice = stream.body()["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["tool_call_errors"][0]["message"].startswith("not JSON")
    assert joined(events)["finish"] == ["stop"]


# Usage and samples


@pytest.mark.parametrize("include_usage", [False, True])
def test_usage_is_one_event_of_its_own_or_none(
    tokenizer: Tokenizer, encoder: PromptEncoder, include_usage: bool
) -> None:
    prompt = ask(encoder, stream=True, stream_options={"include_usage": include_usage})
    events, stream = stream_of(prompt, tokenizer, [tokenizer.encode_markup(REPLIES["answer"])])
    chunks = [json.loads(event.data) for event in events[:-1]]
    with_usage = [chunk for chunk in chunks if chunk.get("usage")]
    assert all(("usage" in chunk) == include_usage for chunk in chunks)
    assert len(with_usage) == include_usage
    usage = stream.usage()
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] == len(prompt.token_ids)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 2
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len(tokenizer.encode("r"))
    if include_usage:
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"] == usage == stream.body()["usage"]


@pytest.mark.parametrize("reply", ["answer", "call"])
@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_usage_says_what_the_engine_said_last_of_the_cache_also_where_the_reply_ended_before_it(
    tokenizer: Tokenizer, encoder: PromptEncoder, protocol: Any, reply: str
) -> None:
    stream = ReplyStream(ask(encoder, protocol, stream=True), tokenizer, reply_id="id")
    events = stream.start()
    for token_id in tokenizer.encode_markup(REPLIES[reply]):
        events += stream.push(0, [token_id])
    assert stream.is_finished(0) == (reply == "call")
    events += stream.finish(0, "stop", 3)
    assert stream.finish(0, "stop", 3) == []
    stream.end()
    usage = stream.body()["usage"]
    names = {"chat": "prompt_cache_hit_tokens", "messages": "cache_read_input_tokens"}
    cached = usage[names[protocol]] if protocol in names else usage["input_tokens_details"]["cached_tokens"]
    assert cached == 3
    if protocol == "chat":
        assert stream.usage() == usage
        return
    said = [json.loads(event.data) for event in events]
    [last] = [data for data in said if data["type"] in ("response.completed", "message_delta")]
    assert last.get("response", last)["usage"] == usage
    assert said.index(last) >= len(said) - 2


@pytest.mark.parametrize("protocol", ["responses", "messages"])
def test_usage_of_the_other_protocols_counts_every_token_once(
    tokenizer: Tokenizer, encoder: PromptEncoder, protocol: Any
) -> None:
    prompt = ask(encoder, protocol)
    ids = [*tokenizer.encode_markup(REPLIES["answer"]), tokenizer.eos_token_id]
    _, stream = stream_of(prompt, tokenizer, [ids])
    usage = stream.body()["usage"]
    is_messages = protocol == "messages"
    cached = usage["cache_read_input_tokens"] if is_messages else usage["input_tokens_details"]["cached_tokens"]
    assert cached == 2
    assert usage["input_tokens"] + (cached if is_messages else 0) == len(prompt.token_ids)
    assert usage["output_tokens"] == len(ids)


def test_samples_are_told_apart_and_summed(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    prompt = ask(encoder, n=3)
    stream = ReplyStream(prompt, tokenizer, reply_id="id")
    events = stream.start()
    texts = ["a</think>x", "b</think>yy", "c</think>zzz"]
    for sample in (2, 0, 1):
        events += stream.push(sample, tokenizer.encode_markup(texts[sample]))
        events += stream.finish(sample, "stop")
    choices = stream.body()["choices"]
    assert [(c["index"], c["message"]["content"]) for c in choices] == [(0, "x"), (1, "yy"), (2, "zzz")]
    finished = [c["index"] for e in events for c in json.loads(e.data)["choices"] if c["finish_reason"]]
    assert finished == [2, 0, 1]
    assert stream.usage()["completion_tokens"] == sum(len(tokenizer.encode_markup(text)) for text in texts)
    assert stream.usage()["prompt_tokens"] == len(prompt.token_ids)


# Log-probabilities


def test_log_probabilities_are_finite_and_as_many_as_asked_for(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    ids = tokenizer.encode_markup("r</think>a😀")
    alternatives = [(5, -0.5), (6, -math.inf), (7, -1.0)]
    stream = ReplyStream(ask(encoder, logprobs=True, top_logprobs=2), tokenizer, reply_id="id")
    stream.start()
    stream.push(0, ids, [(-math.inf, alternatives)] * len(ids))
    stream.finish(0, "stop")
    text = json.dumps(stream.body(), allow_nan=False)
    entries = json.loads(text)["choices"][0]["logprobs"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == "a😀".encode()
    assert all(entry["logprob"] == -9999.0 for entry in entries)
    assert all([a["logprob"] for a in entry["top_logprobs"]] == [-0.5, -9999.0] for entry in entries)


def test_log_probabilities_are_not_shown_unasked(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    stream = ReplyStream(ask(encoder), tokenizer, reply_id="id")
    stream.start()
    ids = tokenizer.encode_markup("r</think>a")
    stream.push(0, ids, [(-0.1, [])] * len(ids))
    stream.finish(0, "stop")
    assert stream.body()["choices"][0]["logprobs"] is None


# A prompt may be answered more than once


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_a_prompt_can_be_answered_again(tokenizer: Tokenizer, encoder: PromptEncoder, protocol: Any) -> None:
    prompt = ask(encoder, protocol)
    ids = tokenizer.encode_markup(REPLIES["answer"])
    bodies = [stream_of(prompt, tokenizer, [ids])[1].body() for _ in range(2)]
    for body in bodies:
        for clock in ("created", "created_at", "completed_at"):
            body.pop(clock, None)
    assert bodies[0] == bodies[1]


# Failure and closing


@pytest.mark.parametrize(
    ("protocol", "name"), [("chat", None), ("responses", "response.failed"), ("messages", "error")]
)
def test_a_failure_is_an_error_event_and_closes(
    tokenizer: Tokenizer, encoder: PromptEncoder, protocol: Any, name: str | None
) -> None:
    stream = ReplyStream(ask(encoder, protocol, stream=True), tokenizer, reply_id="id")
    stream.start()
    (event,) = stream.fail("the engine died")
    assert event.name == name
    data = json.loads(event.data)
    assert data.get("response", data)["error"]["message"] == "the engine died"
    assert stream.push(0, [5]) == []


def test_closing_is_allowed_at_any_time_and_twice(tokenizer: Tokenizer, encoder: PromptEncoder) -> None:
    ReplyStream(ask(encoder), tokenizer, reply_id="id").close()
    _, stream = stream_of(ask(encoder), tokenizer, [tokenizer.encode("a")])
    stream.close()
    stream.close()
    assert stream.push(0, [5]) == [] == stream.finish(0, "stop")


def test_events_are_written_as_server_sent_events() -> None:
    assert Event(None, "[DONE]").wire == "data: [DONE]\n\n"
    assert Event("ping", "{}").wire == "event: ping\ndata: {}\n\n"
