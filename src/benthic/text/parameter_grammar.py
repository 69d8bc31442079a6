"""The parameters of one tool call, as the markup of V4 spells them: one element a parameter, in the schema's order.

    <DSML parameter name="city" string="true">text as it is</DSML parameter>\n
    <DSML parameter name="days" string="false">JSON</DSML parameter>\n

Built here and not by xgrammar's own style of this markup, which admits other blanks between the elements than the
parser of replies reads, and lets the model spell the DSML token by ordinary ones, which are text to that parser. A
string may also be spelled as JSON; that is the form where its schema counts its characters.
"""

import re
from collections.abc import Mapping
from typing import Any

from benthic.errors import BadSchema
from benthic.text.grammar_compiler import MAX_WHITESPACE
from benthic.text.schema_merge import Schema, types_of
from benthic.text.tokenizer import DSML

_END = f"</{DSML}parameter>\n"
_PREFIX = "#/$defs/"
_Format = dict[str, Any]
ANY_TEXT: _Format = {"type": "any_text", "excludes": [DSML]}
"""Without the token of the markup: the parser ends a value at the first closing of an element, whatever follows."""


def marked(text: str) -> _Format:
    """Text in which DSML means the token."""
    parts: list[_Format] = []
    for piece in re.split(f"({DSML})", text):
        if piece:
            parts.append({"type": "token", "token": DSML} if piece == DSML else const(piece))
    return sequence(parts)


def any_parameters() -> _Format:
    """Parameters of any names and values."""
    name = [marked(f'<{DSML}parameter name="'), {"type": "regex", "pattern": '[^"<>\\n]+'}]
    values = [
        sequence([const('" string="true">'), ANY_TEXT]),
        sequence([const('" string="false">'), _json({}, {})]),
    ]
    return {"type": "star", "content": sequence([*name, either(values), marked(_END)])}


def parameters_format(schema: Schema, place: str) -> _Format:
    """The parameters that a schema allows.

    Args:
        schema: as `check_schema(is_markup=True)` rewrites it.
        place: of the schema in the request.

    Raises:
        BadSchema: it is not of an object with properties that it names.
    """
    definitions = schema.get("$defs", {})
    if "anyOf" in schema:
        return either([parameters_format({**branch, "$defs": definitions}, place) for branch in schema["anyOf"]])
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix(_PREFIX)]
        return parameters_format({**target, "$defs": definitions}, place)
    if schema.get("type") != "object":
        raise BadSchema(f"{place} must be of the type object: parameters have names", param=place)
    if not schema["properties"] and schema.get("additionalProperties") in (True, {}):
        return any_parameters()
    odd = [name for name in ("minProperties", "maxProperties", "patternProperties") if name in schema]
    if odd or schema.get("additionalProperties") is not False:
        what = odd[0] if odd else "additionalProperties with a schema"
        raise BadSchema(f"{place} has {what}, which a call's parameters cannot keep to; list properties", param=place)
    required = schema.get("required", ())
    elements = [
        element if name in required else {"type": "optional", "content": element}
        for name, inner in schema["properties"].items()
        for element in [_parameter(name, inner, definitions, place)]
    ]
    if not required:  # in the April dialect a call without parameters has an empty line
        return either([sequence(elements), const("\n")])
    return sequence(elements)


def _parameter(name: str, schema: Schema, definitions: Mapping[str, Schema], place: str) -> _Format:
    if any(char in name for char in '"<>\n'):
        raise BadSchema(f"{place}.properties has the name {name!r}, which the markup of calls cannot hold", param=place)
    head = f'<{DSML}parameter name="{name}" string='
    texts = [[const('"true">'), form] for form in _texts(schema, definitions)]
    values = [[const('"false">'), _json(inner, definitions)] for inner in _values(schema, definitions)]
    return sequence([marked(head), either([sequence(parts) for parts in texts + values]), marked(_END)])


def _texts(schema: Schema, definitions: Mapping[str, Schema]) -> list[_Format]:
    """How a value may be spelled as it is; only strings are."""
    if "anyOf" in schema:
        return [form for branch in schema["anyOf"] for form in _texts(branch, definitions)]
    if "$ref" in schema:
        target = definitions[schema["$ref"].removeprefix(_PREFIX)]
        return [] if "pattern" in target or "anyOf" in target or "$ref" in target else _texts(target, definitions)
    if "enum" in schema:
        return [const(value) for value in schema["enum"] if isinstance(value, str)]
    if "type" in schema and "string" not in types_of(schema["type"]):
        return []
    if "pattern" in schema:
        return [{"type": "regex", "pattern": schema["pattern"]}]
    if "minLength" in schema or "format" in schema:
        return []
    most = schema.get("maxLength")
    return [ANY_TEXT | ({} if most is None else {"max_chars": most})]


def _values(schema: Schema, definitions: Mapping[str, Schema]) -> list[Schema]:
    """Schemas of what is spelled as JSON: all that is no string, and strings that are not spelled as they are."""
    if "anyOf" in schema:
        return [inner for branch in schema["anyOf"] for inner in _values(branch, definitions)]
    if "enum" in schema:
        others = [value for value in schema["enum"] if not isinstance(value, str)]
        return [{"enum": others}] if others else []
    if "$ref" in schema and _texts(schema, definitions):
        return _values(definitions[schema["$ref"].removeprefix(_PREFIX)], definitions)
    if not _texts(schema, definitions) or "type" not in schema:
        return [schema]
    kinds = [kind for kind in types_of(schema["type"]) if kind != "string"]
    strings = ("pattern", "minLength", "maxLength", "format")
    rest = {name: value for name, value in schema.items() if name not in strings}
    return [{**rest, "type": kinds}] if kinds else []


def _json(schema: Schema, definitions: Mapping[str, Schema]) -> _Format:
    whole = schema | ({"$defs": dict(definitions)} if definitions and "$ref" in str(schema) else {})
    return {"type": "json_schema", "json_schema": whole or True, "max_whitespace_cnt": MAX_WHITESPACE}


def const(value: str) -> _Format:
    """A text."""
    return {"type": "const_string", "value": value}


def sequence(elements: list[_Format]) -> _Format:
    """One after the other."""
    return {"type": "sequence", "elements": elements} if elements else const("")


def either(forms: list[_Format]) -> _Format:
    """One of several."""
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}
