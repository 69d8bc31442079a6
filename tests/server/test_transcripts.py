"""Whatever an answer says, in whatever tokens, at whatever pace: every client reads the same, and no markup.

Known failures of the kind parsing: B103, B108, B110, B114, B116.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import pytest

from benthic.text import PromptEncoder, ReplyStream, Tokenizer
from benthic.text.prompt import Prompt
from benthic.text.protocol_fields import MAX_TOKENS_FIELD
from tests.server.merged import ROUTES, Frame, Said, as_sent, is_object, merge, parse_frames, read_body
from tests.server.scripted_engine import TINY, Script
from tests.server.slow_reader import read_slowly
from tests.server.transcripts import CONTROL, DSML, Speller, Transcript, make_transcripts

COUNTS = [pytest.param(10, id="10"), pytest.param(500, id="500", marks=pytest.mark.nightly)]
REST_OF_TAGS = ("tool_calls>", 'invoke name="', 'parameter name="', "invoke>", "parameter>")


@lru_cache
def tokenizer_() -> Tokenizer:
    return Tokenizer(TINY)


@lru_cache
def encoder() -> PromptEncoder:
    return PromptEncoder(tokenizer_(), context_len=16384)


def prompt_of(transcript: Transcript, protocol: Any) -> Prompt:
    body = transcript.body(protocol) | {"stream": True}
    if protocol == "chat":
        body["stream_options"] = {"include_usage": True}
    return encoder().encode(protocol, body)


def read(prompt: Prompt, ids: Sequence[int], *, is_cut: bool = False) -> tuple[Said, Said]:
    """The reply streamed and whole."""
    stream = ReplyStream(prompt, tokenizer_(), reply_id="id")
    try:
        events = (
            stream.start() + stream.push(0, ids) + stream.finish(0, "length" if is_cut else "stop", 0) + stream.end()
        )
        frames: list[Frame] = [(event.name, json.loads(event.data)) for event in events if event.data != "[DONE]"]
        return merge(prompt.protocol, frames), read_body(prompt.protocol, stream.body())
    finally:
        stream.close()


def check(transcript: Transcript, protocol: str, streamed: Said, plain: Said) -> None:
    """The laws of one reply."""
    if protocol == "messages":
        plain.calls = as_sent(plain.calls, streamed.calls)
    assert streamed == plain
    broken = [name for name, arguments in streamed.calls if not is_object(arguments)]
    assert [error["name"] for error in streamed.errors if error["message"] != "this request offers no tools"] == broken
    if not transcript.tools:
        assert not streamed.calls
    if broken:
        assert streamed.finish in ("stop", "length", "end_turn", "max_tokens", "completed", "incomplete")
    if not transcript.has_look_alikes:
        shown = streamed.reasoning + "\0" + streamed.content
        reserved = (*CONTROL, *(REST_OF_TAGS if transcript.kind not in ("damaged", "look-alike") else ()))
        assert not [token for token in reserved if token in shown], shown
        assert transcript.kind == "look-alike" or not streamed.content.endswith(("<" + DSML[:1], "</" + DSML[:1]))


MESSAGES_ENDS = ("end_turn", "max_tokens", "stop_sequence")
FINISHES = {
    "stop": ("stop", "completed", "end_turn", "stop_sequence"),
    "length": ("length", "incomplete", "max_tokens"),
    "tool_calls": ("tool_calls", "completed", "tool_use"),
}


def agree(first: Said, other: Said) -> None:
    """Of one transcript in any spelling and protocol."""
    assert (other.reasoning, other.content) == (first.reasoning, first.content)
    for (name, arguments), (name_first, whole) in zip(other.calls, first.calls, strict=True):
        assert name == name_first
        # Anthropic's clients are spared what is no beginning of JSON.
        assert arguments == whole or (
            other.finish in MESSAGES_ENDS and not is_object(whole) and whole.startswith(arguments)
        )
    assert [error["name"] for error in other.errors] == [error["name"] for error in first.errors]
    assert other.finish in FINISHES[str(first.finish)]


def agrees_with_slow_reader(transcript: Transcript, said: Said) -> None:
    """What the reply says is what its text says."""
    slow = read_slowly(transcript)
    assert said.reasoning == slow.reasoning
    if transcript.json_mode:
        assert json.loads(said.content) == json.loads(slow.content)
    elif transcript.kind in ("damaged", "unfinished"):  # whitespace before a tag may be of the tag or of the text
        assert said.content.rstrip() == slow.content.rstrip()
    else:
        assert said.content == slow.content
    if slow.calls is not None:
        assert said.calls == slow.calls


def spellings(speller: Speller, transcript: Transcript, rng: random.Random) -> list[list[int]]:
    """As the tokenizer does it, in bytes, and cut anywhere."""
    atoms = transcript.atoms
    return [speller.spell(atoms), speller.by_bytes(atoms), speller.at_random(atoms, rng)]


@pytest.mark.parametrize("count", COUNTS)
def test_a_reply_is_the_same_whole_and_streamed_in_every_protocol_for_every_split_of_its_markers(count: int) -> None:
    speller, num_read, kinds = Speller(tokenizer_()), 0, Counter[str]()
    for number, transcript in enumerate(make_transcripts(count)):
        prompts = [prompt_of(transcript, protocol) for protocol in ROUTES if transcript.fits(protocol)]
        kinds[transcript.kind] += 1
        whole = spellings(speller, transcript, random.Random(number))
        splits = list(speller.marker_splits(transcript.atoms))
        splits = splits if count >= 500 else splits[:: max(1, len(splits) // 4)]
        runs = [(prompt, ids) for ids in whole for prompt in prompts]
        runs += [(prompts[i % len(prompts)], ids) for i, ids in enumerate(splits)]
        first, _ = read(*runs[0], is_cut=transcript.is_cut)
        agrees_with_slow_reader(transcript, first)
        for prompt, ids in runs:
            streamed, plain = read(prompt, ids, is_cut=transcript.is_cut)
            check(transcript, prompt.protocol, streamed, plain)
            agree(first, streamed)
        num_read += len(runs)
    print(f"{count} transcripts, {num_read} replies, kinds {dict(kinds)}")


@pytest.mark.anyio
@pytest.mark.parametrize("count", COUNTS)
async def test_an_answer_over_http_is_the_same_whole_and_streamed_at_any_pace(scripted: Any, count: int) -> None:
    speller, num_answers = Speller(tokenizer_()), 0
    async with scripted("", context_len=16384) as up:
        for number, transcript in enumerate(make_transcripts(count, seed=7)):
            rng = random.Random(number)
            ids = rng.choice(spellings(speller, transcript, rng))
            limit = len(ids) if transcript.is_cut else 4000
            first = None
            for protocol in (protocol for protocol in ROUTES if transcript.fits(protocol)):
                body = transcript.body(protocol) | {MAX_TOKENS_FIELD[protocol]: limit}
                sizes = tuple(rng.randint(1, 9) for _ in range(4))
                up.engine.said = Script(ids, step_sizes=rng.choice(((1,), (len(ids),), sizes)))
                options = {"stream_options": {"include_usage": True}} if protocol == "chat" else {}
                response = await up.post(ROUTES[protocol], **body, stream=True, **options)
                streamed = merge(protocol, parse_frames(response.text))
                plain = read_body(protocol, await up.json(ROUTES[protocol], **body))
                check(transcript, protocol, streamed, plain)
                first = first or streamed
                agree(first, streamed)
                num_answers += 2
        assert up.service.channel.num_open == 0
    print(f"{count} transcripts, {num_answers} answers over HTTP")
