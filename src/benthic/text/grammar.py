"""What the text of a reply must conform to, as plain data: made from a request, compiled elsewhere.

    spec = json_schema_grammar(schema, "response_format")     # BadSchema says what is wrong or cannot be kept to
    spec = replace(spec, starts_after=end_of_thinking_id)

`grammar_service.py` tries a spec out before it goes to the engine, whose masks (`grammar_masks.py`) then let the model
choose only tokens that keep to it.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benthic.errors import BadSchema
from benthic.text.fields import as_json
from benthic.text.json_schema_check import check_schema
from benthic.text.pattern_characters import PatternError
from benthic.text.schema_pattern import check_pattern

GrammarKind = Literal["json_schema", "regex", "ebnf", "structural_tag"]
MAX_SOURCE_BYTES = 64 << 10
"""Of a source. Larger ones compile for seconds."""


_HALF = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89a-fA-F][0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """A grammar's source, and where in the reply it begins to hold."""

    kind: GrammarKind
    source: str
    param: str
    """The field of the request that it comes from, for refusals."""
    has_markup: bool = False
    """Whether it may write the markup of tool calls."""
    starts_after: int | None = None
    """The token (end of thinking) after which it holds; None: from the reply's first token on."""
    prefix: str = ""
    """The beginning of the reply that the prompt holds already."""

    @property
    def payload(self) -> bytes:
        """What `GrammarCompiler` understands."""
        fields = {"kind": self.kind, "source": self.source, "has_markup": self.has_markup}
        return json.dumps(fields, ensure_ascii=True, separators=(",", ":")).encode()

    def key(self, vocabulary_digest: str) -> str:
        """Equal keys, equal automata."""
        return hashlib.sha256(vocabulary_digest.encode() + self.payload).hexdigest()


@dataclass(frozen=True, slots=True)
class ReadyGrammar:
    """A spec that compiles; the fields are those of `engine.grammar.Grammar`."""

    key: str
    compiled: bytes
    starts_after: int | None
    prefix: str


def json_schema_grammar(schema: Mapping[str, Any] | bool, param: str) -> GrammarSpec:
    """JSON text that is valid under a schema.

    Raises:
        BadSchema: the schema is wrong, cannot be satisfied, or holds what a grammar cannot keep to; `param` names it.
    """
    return _spec("json_schema", to_source(check_schema(schema, param)), param)


def json_object_grammar(param: str) -> GrammarSpec:
    """Any JSON object."""
    return _spec("json_schema", '{"type":"object"}', param)


def regex_grammar(pattern: str, param: str) -> GrammarSpec:
    """Text that matches a regular expression from its beginning to its end.

    Raises:
        BadSchema: it has what a grammar cannot do.
    """
    try:
        check_pattern(whole_characters(pattern, param))
    except PatternError as error:
        raise BadSchema(f"{param} is {as_json(pattern)}; it {error}", param=param) from None
    return _spec("regex", pattern, param)


def ebnf_grammar(rules: str, param: str) -> GrammarSpec:
    """Text that the rule `root` of a grammar in extended Backus-Naur form derives."""
    return _spec("ebnf", whole_characters(rules, param), param)


def choice_grammar(choices: Sequence[str], param: str) -> GrammarSpec:
    """One of several texts.

    Raises:
        BadSchema: no answer can hold one of them.
    """
    for choice in choices:
        odd = next((char for char in choice if (char < " " and char not in "\t\n\r") or _is_half(char)), None)
        if odd is not None:
            raise BadSchema(f"{param} has {choice!r} with {odd!r}, a character that no answer holds", param=param)
    # Not as ASCII: the library takes the two halves of an escaped character for two characters.
    return _spec("ebnf", "root ::= " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices), param)


def whole_characters(source: str, param: str) -> str:
    """An expression or a grammar, if it spells no half of a character: the library would write a half.

    Raises:
        BadSchema: it does.
    """
    found = _HALF.search(source)
    if found is not None:
        raise BadSchema(f"{param} has {found[1]}, which is half a character; write the character itself", param=param)
    return source


def _is_half(char: str) -> bool:
    return "\ud800" <= char <= "\udfff"


def structural_tag_grammar(tag: Mapping[str, Any], param: str, *, max_bytes: int = MAX_SOURCE_BYTES) -> GrammarSpec:
    """Text with structured parts, as xgrammar's structural tags describe them; it may hold the markup of tool calls."""
    return _spec("structural_tag", to_source(tag), param, has_markup=True, max_bytes=max_bytes)


def to_source(value: Any) -> str:
    """Compact JSON; the order of keys is kept, for it is the order in which they will be written."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _spec(
    kind: GrammarKind, source: str, param: str, *, has_markup: bool = False, max_bytes: int = MAX_SOURCE_BYTES
) -> GrammarSpec:
    if any(map(_is_half, source)):
        raise BadSchema(f"{param} holds half a character, which no answer can", param=param)
    size = len(source.encode("utf-8", errors="replace"))
    if size > max_bytes:
        raise BadSchema(f"{param} has {size} bytes as a grammar; it must have at most {max_bytes}", param=param)
    return GrammarSpec(kind=kind, source=source, param=param, has_markup=has_markup)
