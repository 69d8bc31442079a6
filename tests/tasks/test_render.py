"""Training text is the server's prompt format: same tokens, for every reply of random conversations of every task."""

import random
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import pytest
import tokenizers

from benthic.tasks.conversation import Conversation
from benthic.tasks.example import ExampleEncoder
from benthic.tasks.lookup import list_lookup
from benthic.tasks.mixture import COMPANY, EXCHANGES, draw_exchange, make_conversation, sample_conversation
from benthic.tasks.render import BOS, EOS, Segment, render
from benthic.tasks.requests import request_bodies
from benthic.tasks.sources import Sources
from benthic.text.prompt import PromptEncoder
from benthic.text.settings import read_prompt_settings
from benthic.text.tokenizer import Tokenizer

TINY = Path(str(files("benthic") / "assets" / "tiny"))
TASKS = [*EXCHANGES, "extraction", "tools", "lookup"]


@pytest.fixture(scope="module")
def server() -> PromptEncoder:
    return PromptEncoder(Tokenizer(TINY), context_len=8192, settings=read_prompt_settings(TINY))


@pytest.fixture(scope="module")
def encoder() -> ExampleEncoder:
    return ExampleEncoder(tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json")))


@pytest.fixture(scope="module")
def sources() -> Sources:
    return Sources.bundled()


def prompts_in(segments: list[Segment], encoder: ExampleEncoder) -> list[list[int]]:
    """What precedes each reply, tokenised as training does, but with replies merged as a client's history would be."""
    prompts = []
    for index in range(1, len(segments)):
        is_reply_start = segments[index].weight and not segments[index - 1].weight
        if is_reply_start and segments[index].text != EOS:
            history = [Segment(segment.text) for segment in segments[:index]]
            prompts.append(encoder.encode("", history).token_ids)
    return prompts


def assert_rendered_alike(conversation: Conversation, server: PromptEncoder, encoder: ExampleEncoder) -> None:
    """Compares the last reply's prompt; for earlier ones, reasoning was not yet dropped."""
    segments = render(conversation)
    mine = prompts_in(segments, encoder)[-1]
    body = request_bodies(conversation)[-1]
    theirs = server.encode("chat", body).token_ids
    assert mine == theirs, (server.render("chat", body), "".join(segment.text for segment in segments))


@pytest.mark.parametrize("thinking", [False, True], ids=["direct", "thinking"])
@pytest.mark.parametrize("task", TASKS)
def test_a_single_question_is_rendered_as_the_server_renders_it(
    task: str, thinking: bool, server: PromptEncoder, encoder: ExampleEncoder, sources: Sources
) -> None:
    rng = random.Random(f"render {task} {thinking}")
    for _ in range(25):
        conversation = make_conversation(rng, sources, task, thinking=thinking, split="train", is_alone=True)
        assert_rendered_alike(conversation, server, encoder)


@pytest.mark.parametrize("task", TASKS)
def test_conversations_of_several_turns_are_rendered_as_the_server_renders_them(
    task: str, server: PromptEncoder, encoder: ExampleEncoder, sources: Sources
) -> None:
    rng = random.Random(f"turns {task}")
    for _ in range(40):
        assert_rendered_alike(sample_conversation(rng, sources, task), server, encoder)


def test_the_longest_effort_and_every_tool_round_reach_the_prompt(
    server: PromptEncoder, encoder: ExampleEncoder, sources: Sources
) -> None:
    rng = random.Random("effort")
    for task in ("addition", "tools", "extraction"):
        conversation = make_conversation(rng, sources, task, thinking=True, split="train", is_alone=True)
        assert_rendered_alike(replace(conversation, maximum_effort=True), server, encoder)


def test_every_reply_of_a_tool_conversation_has_the_prompt_that_the_server_would_have_sent(
    server: PromptEncoder, encoder: ExampleEncoder, sources: Sources
) -> None:
    rng = random.Random("tool prompts")
    for _ in range(30):
        conversation = make_conversation(
            rng, sources, "tools", thinking=rng.random() < 0.5, split="train", is_alone=False
        )
        mine = prompts_in(render(conversation), encoder)
        theirs = [server.encode("chat", body).token_ids for body in request_bodies(conversation)]
        assert mine == theirs


def test_without_tools_the_reasoning_of_earlier_turns_is_neither_shown_nor_trained(sources: Sources) -> None:
    rng = random.Random("dropped")
    exchanges = tuple(draw_exchange(rng, sources.lexicon, task, "train") for task in ("counting", "addition"))
    segments = render(Conversation(exchanges=exchanges, thinking=True))
    text = "".join(segment.text for segment in segments)
    assert exchanges[0].reasoning not in text
    assert exchanges[1].reasoning in text
    # The bare count would teach direct mode to skip the work that it needs to show.
    assert all(segment.weight == 0 for segment in segments if segment.text == exchanges[0].answer)


def test_only_replies_and_their_ends_are_trained_on(sources: Sources) -> None:
    rng = random.Random("weights")
    for task in COMPANY:
        conversation = make_conversation(rng, sources, task, thinking=False, split="train", is_alone=True)
        learned = [segment.text for segment in render(conversation) if segment.weight]
        assert learned == [conversation.exchanges[0].expected(False), EOS]
    assert render(conversation)[0].text.startswith(BOS)


def test_letterwise_answers_decode_to_the_same_text(encoder: ExampleEncoder) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(TINY / "tokenizer.json"))
    for text in ("tenalp", "tenalP", "eert, olleh", "a"):
        example = encoder.encode("reversal", [Segment(text, 1.0, spelled=True)])
        assert tokenizer.decode(example.token_ids) == text
        assert len(example.token_ids) == len(text.replace(" ", ""))


def test_lookups_in_long_lists_fit_the_format(server: PromptEncoder, encoder: ExampleEncoder, sources: Sources) -> None:
    exchanges = tuple(list_lookup(random.Random("long"), sources.lexicon, 6000, 3))
    assert_rendered_alike(Conversation(exchanges=exchanges, thinking=False), server, encoder)
