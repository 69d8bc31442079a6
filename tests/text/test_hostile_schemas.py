"""Schemas that mean harm, or that mean two things: refused with the reason at once, or kept to exactly."""

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benthic.errors import BadSchema
from benthic.text.grammar import GrammarSpec, ReadyGrammar, choice_grammar, ebnf_grammar, json_schema_grammar
from benthic.text.grammar_fields import read_extension_grammar
from benthic.text.grammar_masks import GrammarMasks, grammar_masks
from benthic.text.json_schema_check import check_schema
from benthic.text.pattern_characters import PatternError
from benthic.text.pattern_search import searches
from benthic.text.tokenizer import Tokenizer

INT, STR = {"type": "integer"}, {"type": "string"}
LONG = "a" * 40 + "!"
DOUBLING = {
    "$defs": {
        **{f"d{at}": {"type": "object", "anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)},
        "d40": {"type": "object"},
    },
    "$ref": "#/$defs/d0",
}
CYCLE = {
    "$defs": {name: {"allOf": [{"$ref": f"#/$defs/{other}"} for other in "abc" if other != name]} for name in "abc"},
    "$ref": "#/$defs/a",
}
DEEP: Any = 1
for _ in range(900):
    DEEP = [DEEP]
OWN_ID = {"$id": "http://e/x", "$defs": {"y": INT}, "type": "object", "properties": {"p": {"$ref": "#/$defs/y"}}}
REFUSED: list[tuple[Any, str]] = [
    (DOUBLING, "more than 10000 schemas"),
    (CYCLE, "allOf has 256 schemas"),
    ({"enum": [LONG], "pattern": "^(a+)+$"}, "no value"),
    ({"enum": ["a" * 3000], "pattern": "^a+$"}, "too long"),
    ({"enum": ["a"], "pattern": "a{99999999999999999999}"}, "repeats"),
    ({"enum": ["a"], "pattern": "(" * 300 + ")" * 300}, "groups inside"),
    ({"x": [INT], "properties": {"a": {"$ref": "#/x/\u00b2"}}}, "nothing there"),
    ({"x": [INT], "properties": {"a": {"$ref": "#/x/" + "9" * 5000}}}, "nothing there"),
    ({"enum": [1], "multipleOf": 0}, "multipleOf is 0; it must be more than 0"),
    ({"enum": [1], "minimum": "a"}, "minimum"),
    ({"type": "number", "minimum": 10**400}, "minimum"),
    ({"const": DEEP}, "nested too deep"),
    ({"oneOf": [{"enum": [f"{at}-{n}" for n in range(200)]} for at in range(200)]}, "more than 2000 values"),
    ({"allOf": [{"type": "object", "properties": {f"p{at}": {}}} for at in range(3000)]}, "at most 200"),
    ({"enum": ["\ud800"]}, "half a character"),
    ({"allOf": [{"items": INT}, {"prefixItems": [STR]}]}, "prefixItems and items"),
    ({"allOf": [{"properties": {"a": INT}, "additionalProperties": False}, {"patternProperties": {"x": STR}}]}, "one"),
    ({"allOf": [{"enum": [1]}, {"enum": [True]}]}, "no value"),
    ({"allOf": [{"const": [0]}, {"const": [False]}]}, "different values of const"),
    ({"const": 12345678901234567890123}, "2^63"),
    ({"type": "integer", "multipleOf": 2000}, "1000 at most"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-9}, "six places"),
    ({"$defs": {"x": OWN_ID, "y": STR}, "$ref": "#/$defs/x"}, "$id"),
    ({"type": "object", "additionalProperties": {"$ref": "#"}, "minProperties": 1}, "no end"),
    ({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False, "minProperties": 1}, "no end"),
    *(({"type": "string", "pattern": pattern}, words) for pattern, words in (
        (r"^a{,3}$", "dialects"), (r"^\01$", "octal"), (r"^\a$", "few dialects"), (r"^\ud83d\ude00$", "half"),
        (r"^a?+$", "repeats what is repeated"), (r"^[\w-z]$", "range"), (r"^\U0001F600$", "few dialects"),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_would_hold_the_server_or_be_taken_wrongly_is_refused_at_once(schema: Any, words: str) -> None:
    begun = time.monotonic()
    with pytest.raises(BadSchema, match=re.escape(words)):
        check_schema(schema, "s")
    assert time.monotonic() - begun < 5


KEYWORDS = (
    *("type", "enum", "const", "minimum", "multipleOf", "minLength", "pattern", "format", "items", "prefixItems"),
    *("minItems", "properties", "required", "additionalProperties", "patternProperties", "propertyNames", "$ref"),
    *("minProperties", "anyOf", "allOf", "oneOf", "$defs", "$id"),
)
VALUES: list[Any] = [
    *(
        None,
        True,
        0,
        -1,
        1.5,
        10**400,
        "a",
        "",
        "\u00b2",
        [],
        [1],
        [[1]],
        [{}],
        [None],
        ["a"],
        {},
        {"a": 1},
        {"a": None},
    ),
]
OTHER = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_of_the_wrong_form_is_refused_wherever_it_is_looked_at(keyword: str) -> None:
    for value in VALUES:
        for base in ({}, {"type": "object"}, {"type": "integer"}, {"enum": [1, "a", None, {}]}):
            given = {**base, keyword: value}
            inside = {"type": "object", "properties": {"a": given}, "required": ["a"]}
            listed = {"enum": [1, "a"], "minimum": 0, "items": STR}
            for schema in (
                given,
                inside,
                {"allOf": [given, OTHER]},
                {"allOf": [listed, given]},
                {"oneOf": [inside, OTHER]},
            ):
                with contextlib.suppress(BadSchema):
                    check_schema(schema, "s")


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> Tokenizer:
    return Tokenizer(tiny_folder)


@pytest.fixture(scope="module")
def masks(tiny_folder: Path, tokenizer: Tokenizer) -> GrammarMasks:
    return grammar_masks(str(tiny_folder), tokenizer.vocab_size)


def takes(masks: GrammarMasks, tokenizer: Tokenizer, spec: GrammarSpec, text: str) -> bool:
    mask = masks.start(ReadyGrammar("key", spec.payload, None, ""))
    return all(mask.accept(token_id) for token_id in [*tokenizer.encode(text), tokenizer.eos_token_id])


PATTERNS: list[tuple[str, list[str], list[str]]] = [
    (r"^[\\]$", [r'"\\"'], ['"\\"']),
    (r'^["]$', [r'"\""'], ['"""']),
    (r"^\u0022$", [r'"\""'], ['"""']),
    (r"^\x5c$", [r'"\\"'], ['"\\"']),
    (r"^[\u0022\u005c]{2}$", [r'"\"\\"'], [r'"\\"']),
    (r"^[\n]$", [r'"\n"'], ['"\n"']),
    (r"^\u000a$", [r'"\n"'], ['"\n"']),
    ("^a\nb$", [r'"a\nb"'], ['"a\nb"']),
    (r"^\s$", ['" "'], ['"\ufeff"']),
    (r"^\W$", ['"!"'], ['"\u0434"', '"a"']),
    (r"^[^\w]{2}$", ['"!?"'], ['":\u1cbc"']),
    (r"^[^a-c]$", ['"d"', '"\U0001f600"'], ['"a"', '"""']),
    (r"^[\x00-\x7f]$", ['"~"'], ['"\n"', '"""']),
    (r"^.$", ['"\u00e9"'], ['"""']),
    (r"^[^]-]$", [], []),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), PATTERNS, ids=lambda value: str(value)[:30])
def test_patterns_spell_characters_as_json_does(
    masks: GrammarMasks, tokenizer: Tokenizer, pattern: str, good: list[str], bad: list[str]
) -> None:
    schema = {"type": "string", "pattern": pattern}
    if not good:
        with pytest.raises(BadSchema):
            json_schema_grammar(schema, "s")
        return
    spec = json_schema_grammar(schema, "s")
    for text in good:
        assert takes(masks, tokenizer, spec, text), text
        jsonschema.validate(json.loads(text), schema)
    for text in bad:
        assert not takes(masks, tokenizer, spec, text), text


def test_characters_beyond_the_first_plane_are_written_whole(masks: GrammarMasks, tokenizer: Tokenizer) -> None:
    spec = choice_grammar(["\U0001f600", 'say "hi"\n'], "guided_choice")
    assert takes(masks, tokenizer, spec, "\U0001f600") and takes(masks, tokenizer, spec, 'say "hi"\n')
    assert takes(masks, tokenizer, ebnf_grammar(r'root ::= "\U0001F600\\ud83d"', "ebnf"), "\U0001f600\\ud83d")
    bad: list[dict[str, Any]] = [
        {"guided_choice": ["a\0b"]},
        {"ebnf": r'root ::= "\ud83d\ude00"'},
        {"regex": r"\ud83d\ude00"},
        {"structural_tag": {"format": {"type": "regex", "pattern": r"\ud83d\ude00"}}},
    ]
    for body in bad:
        with pytest.raises(BadSchema, match="character"):
            read_extension_grammar(body)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "qwen_xml_parameter", "json_schema": {"not": {}}},
        {"type": "json_schema", "json_schema": {"type": "object"}, "style": "qwen_xml"},
        {"type": "json_schema", "json_schema": {"type": "object", "required": ["a"]}, "any_order": True},
    ],
    ids=["type", "style", "order"],
)
def test_a_structural_tag_has_no_schema_that_is_not_kept_to(part: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"structural_tag\.format\.(type|style|any_order)"):
        read_extension_grammar({"structural_tag": {"format": part}})


SEARCHES = [
    "a",
    "^a",
    "a$",
    "^(a|b)*$",
    "^(a+)+$",
    "a{2,3}?b",
    "^$",
    "",
    "[b-d]x?",
    "(a|)*c",
    r"\d+\.",
    "^a|b$",
    "(^a|b)b",
]
TEXTS = ["", "a", "ab", "aab", "ba", "abc", "b\n", "a\n", "12.5", "cx", "aaaaab", "xyz"]


@pytest.mark.parametrize("pattern", SEARCHES)
def test_a_pattern_is_found_where_python_finds_it(pattern: str) -> None:
    for text in TEXTS:
        assert searches(pattern, text) == (re.search(pattern, text) is not None), text
    for bad in ("(", ")", "*", "a|+"):
        with pytest.raises(PatternError):
            searches(bad, "a")
    assert not searches("^(a+)+$", LONG) and not searches("(|)" * 300 + "b", LONG)
