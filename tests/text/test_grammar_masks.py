"""Masks of xgrammar as the engine uses them: control tokens never, forks apart, rollback over the end."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benthic.errors import BadSchema
from benthic.text.grammar import GrammarSpec, ReadyGrammar, ebnf_grammar, json_object_grammar, regex_grammar
from benthic.text.grammar_masks import GrammarMask, GrammarMasks, grammar_masks
from benthic.text.tokenizer import DSML, END_THINK, USER, Tokenizer
from benthic.text.tool_grammar import Tool, tool_calls_grammar

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}, "n": {"type": ["integer", "null"]}},
    "required": ["city"],
}
TOOLS = [Tool("weather", PARAMETERS, True), Tool("now", {"type": "object", "properties": {}}, True)]


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer(tiny_folder)


@pytest.fixture(scope="module")
def masks(tiny_folder: Path, tokenizer: Tokenizer) -> GrammarMasks:
    return grammar_masks(str(tiny_folder), tokenizer.vocab_size)


def start(masks: GrammarMasks, spec: GrammarSpec) -> GrammarMask:
    return masks.start(ReadyGrammar("key", spec.payload, None, spec.prefix))


def allowed(mask: GrammarMask, size: int) -> set[int]:
    words = np.zeros(-(-size // 32), np.int32)
    if not mask.fill(words):
        return set(range(size))
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits[:size]).tolist())


def takes(mask: GrammarMask, ids: list[int]) -> bool:
    return all(mask.accept(token_id) for token_id in ids)


def test_no_control_token_is_ever_allowed_but_the_end(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    mask = start(masks, json_object_grammar("x"))
    assert takes(mask, tokenizer.encode('{"a": "'))
    inside = allowed(mask, tokenizer.vocab_size)
    assert inside and not inside & tokenizer.control_ids
    for name in (USER, END_THINK, DSML):
        assert not mask.accept(tokenizer.token_id(name))
    assert takes(mask, tokenizer.encode('"}')) and mask.is_ended
    assert allowed(mask, tokenizer.vocab_size) == {tokenizer.eos_token_id}


def test_no_half_of_a_surrogate_pair_can_be_written(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    single = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    mask = start(masks, json_object_grammar("x"))
    assert takes(mask, tokenizer.encode('{"a": "')) and mask.accept(single[b"\xed"])
    inside = allowed(mask, tokenizer.vocab_size)
    assert single[b"\x9f"] in inside and single[b"\xa0"] not in inside and single[b"\xbf"] not in inside
    assert not mask.accept(single[b"\xa0"])
    assert takes(mask, [single[b"\x95"], single[b"\x9c"], *tokenizer.encode('"}')])


def test_what_was_accepted_is_taken_back_the_end_included(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    mask = start(masks, regex_grammar("ab[cd]", "x"))
    first = allowed(mask, tokenizer.vocab_size)
    assert takes(mask, [*tokenizer.encode("a"), *tokenizer.encode("b")])
    fork = mask.fork()
    assert takes(mask, [*tokenizer.encode("c"), tokenizer.eos_token_id]) and mask.is_ended
    assert not fork.is_ended and takes(fork, tokenizer.encode("d"))
    mask.rollback(2)
    assert takes(mask, tokenizer.encode("d")) and not mask.accept(tokenizer.encode("d")[0])
    mask.rollback(3)
    assert allowed(mask, tokenizer.vocab_size) == first


def test_an_answer_that_may_end_or_go_on_is_not_ended(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    mask = start(masks, regex_grammar("a+", "x"))
    assert takes(mask, tokenizer.encode("a")) and not mask.is_ended
    assert tokenizer.eos_token_id in allowed(mask, tokenizer.vocab_size)


def test_a_prefix_counts_as_written(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    mask = start(masks, replace(json_object_grammar("x"), prefix='{"a": [1,'))
    assert takes(mask, tokenizer.encode(" 2]}")) and mask.is_ended
    with pytest.raises(BadSchema, match="does not allow"):
        start(masks, replace(json_object_grammar("x"), prefix="no"))


def test_a_bad_source_is_refused_without_the_librarys_own_places(masks: GrammarMasks) -> None:
    with pytest.raises(BadSchema) as error:
        start(masks, ebnf_grammar("root ::= missing", "x"))
    assert "missing" in str(error.value) and ".cc" not in str(error.value)


def call(name: str, *parameters: tuple[str, str, bool]) -> str:
    lines = [f'<{DSML}invoke name="{name}">\n']
    for key, value, is_text in parameters:
        lines.append(f'<{DSML}parameter name="{key}" string="{json.dumps(is_text)}">{value}</{DSML}parameter>\n')
    return "".join([*lines, f"</{DSML}invoke>\n"])


def block(*calls: str) -> str:
    return f"\n\n<{DSML}tool_calls>\n{''.join(calls)}</{DSML}tool_calls>"


BERN = call("weather", ("city", "Bern", True))
CALLS = [
    (block(BERN), True),
    (block(call("weather", ("city", "Bern", True), ("n", "3", False))), True),
    (block(call("weather", ("city", "Bern", True), ("n", "null", False))), True),
    (block(call("now")), True),
    (block(call("now").replace("\n<", "\n\n<", 1)), True),  # as the April dialect writes it
    (block(BERN, call("now")), True),
    (block(call("weather", ("city", "bern", True))), False),
    (block(call("weather", ("city", "Bern", True), ("n", "x", True))), False),
    (block(call("weather", ("n", "3", False))), False),
    (block(call("weather", ("n", "3", False), ("city", "Bern", True))), False),
    (block(call("weather", ("city", "Bern", True), ("other", "1", False))), False),
    (block(call("other")), False),
    (block(), False),
    (block(BERN) + " and more", False),
]


@pytest.mark.parametrize(("markup", "is_good"), CALLS, ids=[str(number) for number in range(len(CALLS))])
def test_forced_and_strict_calls_are_those_of_the_tools(
    masks: GrammarMasks, tokenizer: Tokenizer, markup: str, is_good: bool
) -> None:
    eos = tokenizer.eos_token_id
    forced = tool_calls_grammar(TOOLS, is_forced=True, is_parallel=True, answer=None)
    free = tool_calls_grammar(TOOLS, is_forced=False, is_parallel=True, answer=None)
    single = tool_calls_grammar(TOOLS, is_forced=True, is_parallel=False, answer=None)
    assert forced is not None and free is not None and single is not None
    ids = tokenizer.encode_markup(markup)
    assert takes(start(masks, forced), [*ids, eos]) == is_good
    assert takes(start(masks, free), [*tokenizer.encode("Well, <b>."), *ids, eos]) == is_good
    assert takes(start(masks, single), [*ids, eos]) == (is_good and markup.count("<" + DSML + "invoke") == 1)
    # Spelled by ordinary tokens it would be text to whoever reads the reply.
    assert not takes(start(masks, forced), [*tokenizer.encode(markup), eos])
