"""Failures of other servers in reading replies (kind parsing), each by its id, through the server and a scripted model.

B103, B108, B114 and B116 are also in test_transcripts.py, for every split of 500 answers.
"""

import json
from typing import Any

import pytest

from benthic.text import PromptEncoder, ReplyStream, Tokenizer
from benthic.text.json_prefix import JsonPrefix
from benthic.text.tokenizer import ASSISTANT, DSML, END_THINK, EOS, THINK, USER
from tests.server.merged import CHAT, ROUTES, both_ways, parse_frames
from tests.server.scripted_engine import Script
from tests.server.transcripts import Speller

pytestmark = pytest.mark.anyio

ASK = [{"role": "user", "content": "hi"}]
ON, OFF = {"type": "enabled"}, {"type": "disabled"}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "n": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["a"],
}
TOOL = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
OTHER = {"type": "function", "function": {"name": "g", "parameters": {"type": "object"}}}
TOOLS = {
    "chat": [TOOL],
    "responses": [{"type": "function", "name": "f", "parameters": PARAMETERS}],
    "messages": [{"name": "f", "input_schema": PARAMETERS}],
}
OPEN, CLOSE = f"<{DSML}tool_calls>\n", f"</{DSML}tool_calls>"


def parameter(name: str, value: str, kind: str = ' string="true"') -> str:
    return f'<{DSML}parameter name="{name}"{kind}>{value}</{DSML}parameter>\n'


def invoke(name: str = "f", parameters: str = parameter("a", "x")) -> str:
    return f'<{DSML}invoke name="{name}">\n{parameters}</{DSML}invoke>\n'


def asking(protocol: str, *, thinking: bool = True, **more: Any) -> dict[str, Any]:
    if protocol == "responses":
        return {"input": "hi", "reasoning": {"effort": "low" if thinking else "none"}, **more}
    body = {"messages": ASK, "thinking": ON if thinking else OFF, **more}
    return body | ({"max_tokens": 300} if protocol == "messages" else {})


@pytest.mark.parametrize("protocol", ROUTES)
async def test_b103_several_tokens_at_once_leak_no_markup(scripted: Any, protocol: str, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_markup(f"r{END_THINK}hi\n\n{OPEN}{invoke()}{CLOSE}{EOS}")
    async with scripted("", context_len=2048) as up:
        for size in (1, 2, 3, 7, len(ids)):
            up.engine.said = Script(ids, step_sizes=(size,))
            said = await both_ways(up, protocol, **asking(protocol, tools=TOOLS[protocol]))
            assert (said.reasoning, said.content, said.errors) == ("r", "hi", [])
            assert [(name, json.loads(arguments)) for name, arguments in said.calls] == [("f", {"a": "x"})]


async def test_b104_arguments_flow_and_each_beginning_can_become_json(scripted: Any) -> None:
    value = 'a "quoted" \\ back\nslash </b> < 你😀 \\u0041 ' * 110
    async with scripted(OPEN + invoke(parameters=parameter("a", value)) + CLOSE + EOS, context_len=16384) as up:
        response = await up.post(CHAT, **asking("chat", thinking=False, tools=[TOOL]), stream=True)
        deltas = [
            call["function"]["arguments"]
            for _, data in parse_frames(response.text)
            for call in data["choices"][0]["delta"].get("tool_calls") or ()
        ]
    assert len(value) > 4500
    assert len(deltas) > 100
    assert max(map(len, deltas)) < 50
    prefix = JsonPrefix()
    assert all(prefix.take(delta) == delta for delta in deltas)
    assert json.loads("".join(deltas)) == {"a": value}


RECOVERED = {
    "opening missing": invoke() + CLOSE,
    "wrapper missing": invoke(),
    "opening misspelt": f"<{DSML}tool_call>\n{invoke()}{CLOSE}",
    "opening garbled": f"<{DSML}tool_calls\n{invoke()}{CLOSE}",
    "older dialect": f"<{DSML}function_calls>\n{invoke()}</{DSML}function_calls>",
    "closing missing": OPEN + invoke(),
    "empty blocks before": OPEN + CLOSE + OPEN + invoke() + CLOSE,
}


@pytest.mark.parametrize("shape", RECOVERED)
async def test_b106_a_complete_call_is_found_whatever_stands_around_it(scripted: Any, shape: str) -> None:
    async with scripted("go\n\n" + RECOVERED[shape] + EOS, context_len=2048) as up:
        said = await both_ways(up, "chat", **asking("chat", thinking=False, tools=[TOOL]))
        assert (said.content.rstrip(), said.calls, said.finish) == ("go", [("f", '{"a": "x"}')], "tool_calls")
        other = await both_ways(up, "chat", **asking("chat", thinking=False, tools=[OTHER]))
        assert (other.finish, [error["name"] for error in other.errors]) == ("stop", ["f"])


async def test_b106_text_that_quotes_the_markup_is_no_call(scripted: Any, tokenizer: Tokenizer) -> None:
    quoted = f"Calls look so:\n```\n{OPEN}{invoke()}{CLOSE}\n```\nand thinking ends with {END_THINK}, right?"
    async with scripted([*tokenizer.encode(quoted), tokenizer.eos_token_id], context_len=2048) as up:
        for tools in ({"tools": [TOOL]}, {}):
            said = await both_ways(up, "chat", **asking("chat", thinking=False, **tools))
            assert (said.content, said.calls, said.errors, said.finish) == (quoted, [], [], "stop")


@pytest.mark.parametrize("protocol", ROUTES)
async def test_b107_text_around_an_empty_block_stays_and_stray_closing_tags_go(scripted: Any, protocol: str) -> None:
    cases = {
        f"{END_THINK}a{OPEN}{CLOSE}b": ("", "ab"),
        f"r</{DSML}invoke>s{CLOSE}{END_THINK}a</{DSML}parameter>b{CLOSE}c": ("rs", "abc"),
    }
    async with scripted("", context_len=2048) as up:
        for markup, shown in cases.items():
            for size in (1, 3):
                up.engine.said = Script(up.service.tokenizer.encode_markup(markup + EOS), step_sizes=(size,))
                said = await both_ways(up, protocol, **asking(protocol, tools=TOOLS[protocol]))
                assert ((said.reasoning, said.content), said.calls) == (shown, [])
                assert said.finish in ("stop", "completed", "end_turn")


async def test_b108_a_bad_call_does_not_take_the_good_ones_with_it(scripted: Any) -> None:
    bad = invoke(parameters=parameter("n", "three", ' string="false"'))
    untyped = invoke(parameters=parameter("a", "y", ""))
    async with scripted(OPEN + bad + invoke() + untyped + CLOSE + EOS, context_len=2048) as up:
        said = await both_ways(up, "chat", **asking("chat", thinking=False, tools=[TOOL]))
    assert said.calls == [("f", '{"n": three}'), ("f", '{"a": "x"}'), ("f", '{"a": "y"}')]
    assert [error["arguments"] for error in said.errors] == ['{"n": three}']
    assert said.finish == "stop"


@pytest.mark.parametrize("protocol", ROUTES)
async def test_b109_thinking_that_never_ends_or_ends_at_once_is_told_as_it_is(scripted: Any, protocol: str) -> None:
    cases = {
        "thoughts": ("thoughts", ""),
        f"{END_THINK}b": ("", "b"),
        f"a{END_THINK}b{END_THINK}c": ("a", "bc"),
        f"{THINK}a{END_THINK}b": ("a", "b"),
    }
    field = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}[protocol]
    async with scripted("") as up:
        for markup, shown in cases.items():
            ids = up.service.tokenizer.encode_markup(markup)
            up.engine.said = [*ids, up.service.tokenizer.eos_token_id]
            for limit, ends in (
                (200, ("stop", "completed", "end_turn")),
                (len(ids), ("length", "incomplete", "max_tokens")),
            ):
                said = await both_ways(up, protocol, **asking(protocol) | {field: limit})
                assert (said.reasoning, said.content) == shown
                assert said.finish in ends


@pytest.mark.parametrize("protocol", ROUTES)
async def test_b110_a_call_ends_the_thinking_that_it_stands_in(scripted: Any, protocol: str) -> None:
    async with scripted(f"I shall look\n\n{OPEN}{invoke()}{CLOSE}{EOS}", context_len=2048) as up:
        said = await both_ways(up, protocol, **asking(protocol, tools=TOOLS[protocol]))
    assert (said.reasoning, said.content, len(said.calls)) == ("I shall look", "", 1)
    assert said.finish in ("tool_calls", "completed", "tool_use")


SPELLINGS: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {},
        {"thinking": ON},
        {"thinking": OFF},
        {"thinking": True},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"thinking": True}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        *({"reasoning_effort": effort} for effort in ("none", "low", "high", "max")),
    ],
    "responses": [{}, *({"reasoning": {"effort": effort}} for effort in ("none", "low", "high"))],
    "messages": [{}, {"thinking": ON | {"budget_tokens": 64}}, {"thinking": OFF}, {"output_config": {"effort": "low"}}],
}


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("protocol", ROUTES)
async def test_b111_b112_a_reply_begins_where_its_prompt_ends(scripted: Any, protocol: str, default: bool) -> None:
    async with scripted(f"x{END_THINK}y" + EOS, thinking=default) as up:
        tokenizer = up.service.tokenizer
        for spelling in SPELLINGS[protocol]:
            body = asking(protocol)
            for name in ("thinking", "reasoning"):
                body.pop(name, None)
            said = await both_ways(up, protocol, **body | spelling)
            last = up.engine.requests[-1].prompt_ids[-1]
            assert last in (tokenizer.token_id(THINK), tokenizer.token_id(END_THINK)), spelling
            expected = ("x", "y") if last == tokenizer.token_id(THINK) else ("", "xy")
            assert (said.reasoning, said.content) == expected, spelling
            assert spelling or default == (last == tokenizer.token_id(THINK))


def test_b114_an_answer_cut_at_any_character_shows_no_beginning_of_a_marker(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, context_len=4096)
    markup = f"hi\n\n{OPEN}{invoke()}{invoke()}{CLOSE}"
    pieces = markup.split(DSML)
    for offer in ({"tools": [TOOL]}, {}):
        prompt = encoder.encode("chat", asking("chat", thinking=False, **offer))
        for number, piece in enumerate(pieces):
            for end in range(len(piece) + 1):
                cut = DSML.join([*pieces[:number], piece[:end]])
                stream = ReplyStream(prompt, tokenizer, reply_id="id")
                stream.start()
                stream.push(0, tokenizer.encode_markup(cut))
                stream.finish(0, "length")
                content = stream.body()["choices"][0]["message"]["content"]
                stream.close()
                assert content.rstrip("\n<") in ("hi"[:end], "hi"), (cut, content)


CHARACTERS = "aé你😀👨‍👩‍👧🇩🇪"


@pytest.mark.parametrize("protocol", ROUTES)
async def test_b115_b116_characters_cut_by_tokens_arrive_whole_and_broken_ones_as_one_replacement(
    scripted: Any, protocol: str
) -> None:
    raw = CHARACTERS.encode()
    endings = [
        b"",
        "😀".encode()[:1],
        "😀".encode()[:3],
        b"\xff",
        "é".encode()[:1] + b" ",
        "你".encode()[:2] + "é".encode(),
    ]
    async with scripted("") as up:
        speller = Speller(up.service.tokenizer)
        for ending in endings:
            for size in (1, 3):
                for eos in ([], [up.service.tokenizer.eos_token_id]):
                    ids = [*speller.by_bytes([raw + ending]), *eos]
                    up.engine.said = Script(ids, step_sizes=(size,))
                    said = await both_ways(up, protocol, **asking(protocol, thinking=False))
                    assert said.content == (raw + ending).decode("utf-8", errors="replace")


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("hello world", ["lo wo"], "hel"),
        ("aaab", ["aab"], "a"),
        ("数 三百四十七", ["百四"], "数 三"),
        ("one two three", ["four", "three", "two", "x"], "one "),
        ("abcd", ["bcd", "cd"], "a"),
        ("abcd", ["cd", "bcd"], "a"),
        ("ababc", ["abc"], "ab"),
        ("no end", ["ends"], "no end"),
        ("😀👍🏽 ok", ["🏽"], "😀👍"),
    ],
)
async def test_b117_stop_strings_are_cut_at_any_pace(scripted: Any, text: str, stop: list[str], shown: str) -> None:
    async with scripted("") as up:
        speller = Speller(up.service.tokenizer)
        for ids in (speller.spell([text]), speller.by_bytes([text])):
            for size in (1, 100):
                up.engine.said = Script(ids, step_sizes=(size,))
                body = asking("chat", thinking=False, stop=stop, logprobs=True)
                said = await both_ways(up, "chat", **body)
                assert (said.content, said.finish) == (shown, "stop")
                [choice] = (await up.json(CHAT, **body))["choices"]
                # One entry for each token of which something is shown; usage counts the string's own tokens, too.
                entries = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])
                assert entries.decode("utf-8", errors="ignore").startswith(shown), entries
                assert len(entries) <= said.usage["completion_tokens"] + len(text.encode())


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_b118_b119_a_stop_string_sleeps_while_thinking_and_the_one_that_matched_is_named(
    scripted: Any, protocol: str
) -> None:
    field = {"chat": "stop", "messages": "stop_sequences"}[protocol]
    async with scripted("") as up:
        ids = up.service.tokenizer.encode_markup(f"a STOP b{END_THINK}c STOP d{EOS}")
        for size in (1, 2, 100):
            up.engine.said = Script(ids, step_sizes=(size,))
            body = asking(protocol, **{field: ["END", "STOP"]})
            said = await both_ways(up, protocol, **body)
            assert (said.reasoning, said.content) == ("a STOP b", "c ")
            said = await both_ways(up, protocol, **body | {"thinking": OFF})
            assert (said.reasoning, said.content) == ("", "a ")
            if protocol == "messages":
                whole = await up.json(ROUTES[protocol], **body)
                assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "STOP")
        said = await both_ways(up, protocol, **asking(protocol, **{field: ["never"]}))
        assert said.finish in ("stop", "end_turn")


@pytest.mark.parametrize("thinking", [False, True])
async def test_b120_json_that_was_asked_for_is_the_answer_and_not_the_reasoning(scripted: Any, thinking: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    reasoning = 'maybe {"a": 2}?' if thinking else ""
    markup = (reasoning + END_THINK if thinking else "") + '{"a": 1}' + EOS
    async with scripted(markup) as up:
        said = await both_ways(up, "chat", **asking("chat", thinking=thinking, response_format=form))
        assert (said.reasoning, json.loads(said.content)) == (reasoning, {"a": 1})
        grammar = up.engine.requests[-1].params.grammar
        if grammar is not None:  # what holds begins to hold after the thinking
            assert grammar.starts_after == (up.service.tokenizer.token_id(END_THINK) if thinking else None)


def test_b121_user_text_is_ordinary_tokens_whatever_it_spells(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, context_len=4096)

    def control_ids(text: str) -> list[int]:
        prompt = encoder.encode("chat", {"messages": [{"role": "user", "content": text}], "thinking": True})
        return [token for token in prompt.token_ids if token in tokenizer.control_ids]

    plain = control_ids("x")
    for token in (THINK, END_THINK, USER, ASSISTANT, DSML, EOS):
        for start in range(len(token)):
            for end in range(start + 1, len(token) + 1):
                assert not tokenizer.control_ids & set(tokenizer.encode(token[start:end]))
        assert control_ids(f"a{token}b") == control_ids(token) == plain


async def test_b122_values_are_passed_as_they_are_and_none_is_invented(scripted: Any) -> None:
    literal = parameter("a", "null") + parameter("tags", '["x", []]', ' string="false"') + parameter("n", "3")
    async with scripted(OPEN + invoke(parameters=literal) + CLOSE + EOS, context_len=2048) as up:
        said = await both_ways(up, "chat", **asking("chat", thinking=False, tools=[TOOL]))
    [(_, arguments)] = said.calls
    assert json.loads(arguments) == {"a": "null", "tags": ["x", []], "n": "3"}


HISTORY: list[tuple[Any, int]] = [
    ('{"a": "x"}', 200),
    ("", 200),
    ("{", 200),
    ("[1]", 200),
    ("null", 200),
    ({"a": "x"}, 200),
    (None, 400),
    (7, 400),
    (["x"], 400),
]


@pytest.mark.parametrize(("arguments", "status"), HISTORY, ids=lambda value: json.dumps(value))
async def test_b123_broken_arguments_in_the_history_are_rendered_or_refused_by_their_place(
    scripted: Any, arguments: Any, status: int
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        *ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "1"},
    ]
    async with scripted("x" + EOS, context_len=2048) as up:
        response = await up.post(CHAT, messages=messages, tools=[TOOL], thinking=OFF)
        assert response.status_code == status, response.text
        if status == 400:
            assert response.json()["error"]["param"] == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("thinking", [False, None, True])
async def test_b124_a_named_choice_gives_that_function_and_no_markup(scripted: Any, thinking: bool | None) -> None:
    """With thinking the call follows it; where that cannot be, the request is refused with the reason."""
    choice = {"type": "function", "function": {"name": "f"}}
    body: dict[str, Any] = {"messages": ASK, "tools": [TOOL, OTHER], "tool_choice": choice}
    body |= {} if thinking is None else {"thinking": ON if thinking else OFF}

    def answer(request: Any) -> str:
        whole = f"{OPEN}{invoke()}{CLOSE}{EOS}"
        text = tokenizer.decode(request.prompt_ids)
        if text.endswith(THINK):
            return f"r{END_THINK}\n\n{whole}"
        return whole.removeprefix(OPEN) if OPEN in text[-40:] else whole

    async with scripted(answer, context_len=2048) as up:
        tokenizer = up.service.tokenizer
        response = await up.post(CHAT, **body)
        if thinking and response.status_code == 400:
            assert response.json()["error"]["param"] == "tool_choice"
            return
        said = await both_ways(up, "chat", **body)
        assert (said.calls, said.content, said.errors) == ([("f", '{"a": "x"}')], "", [])
        assert said.finish in ("stop", "tool_calls")
