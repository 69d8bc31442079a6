"""Schemas are rewritten into what a grammar keeps to, or refused with the reason; never silently widened."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from benthic.errors import BadSchema
from benthic.text.grammar import ReadyGrammar, json_schema_grammar
from benthic.text.grammar_masks import GrammarMask, GrammarMasks, grammar_masks
from benthic.text.json_schema_check import check_schema
from benthic.text.pattern_characters import PatternError
from benthic.text.schema_pattern import whole_pattern
from benthic.text.tokenizer import Tokenizer
from tests.text.schema_cases import schema_case

INT, STR = {"type": "integer"}, {"type": "string"}
ENDLESS = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
REFUSED: list[tuple[Any, str, str]] = [
    (False, "s", "no value"),
    (5, "s", "must be a JSON schema"),
    ({"not": INT}, "s", "not"),
    ({"properties": {"a": {"if": INT}}}, "s.properties.a", "condition"),
    ({"type": "array", "contains": INT}, "s", "contains"),
    ({"type": "array", "uniqueItems": True}, "s", "uniqueItems"),
    ({"dependentRequired": {"a": ["b"]}}, "s", "dependentRequired"),
    ({"$ref": "https://example.com/s"}, "s", "point into the schema"),
    ({"$ref": "#/$defs/missing"}, "s", "nothing there"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "s", ""),
    ({"$ref": "#"}, "s", "leads back to itself"),
    (ENDLESS, "s", "no end"),
    ({"enum": []}, "s", "no value"),
    ({"const": 5, "type": "string"}, "s", "no value"),
    ({"type": "text"}, "s", "must be of string"),
    ({"type": []}, "s", "empty list"),
    ({"type": "number", "multipleOf": 0.1}, "s", "whole multiples"),
    ({"type": "integer", "multipleOf": 3, "minimum": 1}, "s", "both are given"),
    ({"type": "string", "minLength": 5, "maxLength": 2}, "s", "at most maxLength"),
    ({"type": "string", "pattern": "a(?!b)"}, "s", "looks ahead"),
    ({"type": "string", "pattern": r"\bword"}, "s", "word boundary"),
    ({"type": "string", "pattern": "(^a|b)c"}, "s", "anchor in its middle"),
    ({"type": "string", "pattern": "[a-z]{1,5000}"}, "s", "400 times"),
    ({"type": "string", "pattern": "^.{1,150}$"}, "s", "100 times"),
    ({"type": "string", "pattern": "^ab|cd$", "maxLength": 3}, "s", "one repeated class"),
    ({"oneOf": [INT, {"type": "number"}]}, "s.oneOf[1]", "may both hold"),
    ({"type": "object", "properties": {"a": INT}, "required": ["b"], "additionalProperties": False}, "s", "no others"),
    ({"type": "object", "minProperties": 3}, "s", "the same name could come twice"),
    ({"patternProperties": {"a": INT, "b": STR}}, "s", "one"),
    ({"allOf": [{"type": "object", "additionalProperties": False}, {"properties": {"a": INT}}]}, "s", "'a'"),
    ({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}, "s", "two different values of pattern"),
]


@pytest.mark.parametrize(("schema", "place", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_a_grammar_cannot_keep_to_is_refused_at_its_place(schema: Any, place: str, words: str) -> None:
    with pytest.raises(BadSchema) as error:
        check_schema(schema, "s")
    assert error.value.param == place
    assert words in str(error.value)


REWRITTEN: list[tuple[Any, Any]] = [
    (True, {}),
    ({"title": "t", "x-unknown": 1}, {}),
    ({"minimum": 3}, {"type": "number", "minimum": 3}),
    (
        {"type": "integer", "minimum": 1.5, "exclusiveMaximum": 7.5},
        {"type": "integer", "minimum": 2, "exclusiveMaximum": 8},
    ),
    ({"type": ["string", "null"], "enum": ["a", 1, None]}, {"enum": ["a", None]}),
    ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, {"type": "string", "minLength": 1, "maxLength": 2}),
    ({"type": "string", "minLength": 0, "format": "date"}, {"type": "string", "format": "date"}),
    ({"type": "array", "minItems": 2}, {"type": "array", "items": {}, "minItems": 2}),
    ({"oneOf": [INT, STR]}, {"anyOf": [INT, STR]}),
    (
        {"anyOf": [STR, {"type": "null"}], "maxLength": 3},
        {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "null"}]},
    ),
    ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 5}, {"type": "string", "pattern": "^(?:(?:[a-z]{1,5}))$"}),
]


@pytest.mark.parametrize(("schema", "expected"), REWRITTEN, ids=lambda value: str(value)[:50])
def test_a_schema_is_rewritten_to_what_the_library_keeps(schema: Any, expected: Any) -> None:
    assert check_schema(schema, "s") == expected


def test_parts_that_must_hold_together_become_one_object() -> None:
    base = {"type": "object", "properties": {"a": INT}, "required": ["a"]}
    schema = {"$defs": {"A": base}, "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": STR}}]}
    checked = check_schema(schema, "s")
    assert checked["properties"] == {"a": INT, "b": STR} and checked["required"] == ["a"]
    either = {"properties": {"a": INT, "b": INT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert [branch["required"] for branch in check_schema(either, "s")["anyOf"]] == [["a"], ["b"]]


def test_recursion_that_can_end_is_kept() -> None:
    tree = {
        "type": "object",
        "properties": {"child": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["child"],
    }
    checked = check_schema(tree, "s")
    assert checked["properties"]["child"]["anyOf"][0] == {"$ref": "#/$defs/d0"}
    assert set(checked["$defs"]) == {"d0"}


def test_patterns_are_anchored_and_spelled_as_json_has_them() -> None:
    assert whole_pattern("b") == "^(?:.*(?:b).*)$"
    assert whole_pattern("^a|b$") == "^(?:(?:a).*|.*(?:b))$"
    assert whole_pattern('^"$') == r'^(?:(?:(?:\\")))$'
    assert whole_pattern('^"$', is_json=False) == '^(?:(?:"))$'
    with pytest.raises(PatternError):
        whole_pattern("[a")


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer(tiny_folder)


@pytest.fixture(scope="module")
def masks(tiny_folder: Path, tokenizer: Tokenizer) -> GrammarMasks:
    return grammar_masks(str(tiny_folder), tokenizer.vocab_size)


def written(mask: GrammarMask, tokenizer: Tokenizer, rng: random.Random) -> str | None:
    """A text that the mask allows, drawn with a liking for what closes; None where it grows too long."""
    ids: list[int] = []
    words = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    closing = {tokenizer.eos_token_id, *(tokenizer.encode(char)[0] for char in '"}]')}
    while len(ids) < 500:
        words[:] = -1
        mask.fill(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        ends = [int(token) for token in allowed if int(token) in closing]
        choices = ends if ends and rng.random() < 0.3 else allowed
        token = int(choices[rng.randrange(len(choices))])
        assert mask.accept(token)
        if token == tokenizer.eos_token_id:
            return tokenizer.decode(ids)
        ids.append(token)
    return None


def check_cases(masks: GrammarMasks, tokenizer: Tokenizer, seeds: range) -> None:
    num_whole = 0
    for seed in seeds:
        schema = schema_case(seed)
        spec = json_schema_grammar(schema, "s")
        for sample in range(2):
            mask = masks.start(ReadyGrammar("key", spec.payload, None, ""))
            text = written(mask, tokenizer, random.Random(1000 * seed + sample))
            if text is None or "\ufffd" in text:  # half a character has no length that two readers agree on
                continue
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
            num_whole += 1
    assert num_whole > 1.5 * len(seeds)


def test_whatever_the_grammar_of_a_schema_allows_is_valid_under_it(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    check_cases(masks, tokenizer, range(200, 220))


@pytest.mark.nightly
def test_the_same_for_many_more_schemas(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    check_cases(masks, tokenizer, range(300, 900))
