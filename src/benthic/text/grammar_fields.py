"""Fields that say what a reply must conform to, in the spellings of OpenAI, Anthropic, vLLM and SGLang.

    response_format: {type: json_object | json_schema | regex | ebnf | structural_tag}   chat, completions
    text.format, output_config.format, output_format                                     Responses, Messages
    regex, ebnf, structural_tag                                                          everywhere
    guided_json, guided_regex, guided_choice, guided_grammar, structured_outputs         everywhere

One of them at a time. JSON formats of a protocol's own stay in its body, for the prompt tells the model about them.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from benthic.errors import BadSchema, RequestError
from benthic.text.fields import read_object, refuse
from benthic.text.grammar import (
    GrammarSpec,
    choice_grammar,
    ebnf_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
    structural_tag_grammar,
    whole_characters,
)
from benthic.text.grammar_compiler import MAX_WHITESPACE
from benthic.text.json_schema_check import check_schema

GRAMMAR_FIELDS = (
    *("regex", "ebnf", "structural_tag"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"),
)
"""Extension fields, the same in every protocol."""
MAX_CHOICES = 1000
_Reader = Callable[[Any, str], GrammarSpec]


def read_extension_grammar(body: Mapping[str, Any]) -> GrammarSpec | None:
    """Read the extension fields; at most one may be there.

    Raises:
        BadSchema: a grammar cannot be used; `param` names the place.
        RequestError: a field has a wrong type, or there are several.
    """
    return only_grammar([_read_extension(name, body.get(name)) for name in GRAMMAR_FIELDS])


def _read_extension(name: str, value: Any) -> GrammarSpec | None:
    if value is None:
        return None
    if name == "structured_outputs":
        return _read_structured_outputs(value)
    return _READERS[name](value, name)


def only_grammar(found: list[GrammarSpec | None]) -> GrammarSpec | None:
    """The one grammar of a request, if it has one.

    Raises:
        RequestError: there are several.
    """
    specs = [spec for spec in found if spec is not None]
    if len(specs) > 1:
        names = " and ".join(spec.param for spec in specs[:2])
        raise RequestError(f"{names} are both given; a reply can conform to one of them", param=specs[1].param)
    return specs[0] if specs else None


def read_format(value: Any, path: str, *, inner: str = "") -> GrammarSpec | None:
    """The grammar of a `response_format`, or of what the other protocols call so; None for text.

    Args:
        value: the field; its shape has been checked where the type is json_schema.
        path: its name.
        inner: the member that holds the schema's object, as "json_schema" does in chat.

    Raises:
        BadSchema, RequestError: as `read_extension_grammar`.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        refuse(path, value, 'an object such as {"type": "json_object"}')
    match value.get("type"):
        case "text":
            return None
        case "json_object":
            return json_object_grammar(path)
        case "json_schema":
            place, holder = (f"{path}.{inner}", value.get(inner)) if inner else (path, value)
            if not isinstance(holder, dict) or "schema" not in holder:
                refuse(f"{place}.schema", None, "a JSON schema")
            return json_schema_grammar(holder["schema"], f"{place}.schema")
        case "regex":
            return _read_regex(value.get("pattern", value.get("regex")), f"{path}.pattern")
        case "ebnf" | "grammar":
            return _read_ebnf(value.get("grammar", value.get("ebnf")), f"{path}.grammar")
        case "structural_tag":
            return _read_structural_tag(value, path)
    refuse(f"{path}.type", value.get("type"), "one of text, json_object, json_schema, regex, ebnf, structural_tag")


def is_told(value: Any) -> bool:
    """Whether a format is one of those that the prompt tells the model about."""
    return isinstance(value, dict) and value.get("type") in ("text", "json_object", "json_schema")


def _read_structured_outputs(value: Any) -> GrammarSpec | None:
    path = "structured_outputs"
    given = {name: inner for name, inner in (read_object({path: value}, path) or {}).items() if inner is not None}
    unknown = [name for name in given if name not in _MEMBERS]
    if unknown:
        refuse(f"{path}.{unknown[0]}", given[unknown[0]], f"absent: this server reads {', '.join(_MEMBERS)}")
    if given.pop("json_object", None):
        given["json_object"] = True
    return only_grammar([_MEMBERS[name](inner, f"{path}.{name}") for name, inner in given.items()])


def _read_json(value: Any, path: str) -> GrammarSpec:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadSchema(f"{path} is no JSON text: {error}; it must be a JSON schema", param=path) from None
    return json_schema_grammar(value, path)


def _read_regex(value: Any, path: str) -> GrammarSpec:
    return regex_grammar(_text(value, path, "a regular expression"), path)


def _read_ebnf(value: Any, path: str) -> GrammarSpec:
    return ebnf_grammar(_text(value, path, "a grammar with a rule named root"), path)


def _read_choice(value: Any, path: str) -> GrammarSpec:
    is_list = isinstance(value, list) and 0 < len(value) <= MAX_CHOICES
    if not is_list or not all(isinstance(item, str) and item for item in value):
        refuse(path, value, f"a list of 1 to {MAX_CHOICES} strings, none of them empty")
    return choice_grammar(value, path)


def _read_structural_tag(value: Any, path: str) -> GrammarSpec:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadSchema(f"{path} is no JSON text: {error}; it must be a structural tag", param=path) from None
    if not isinstance(value, dict):
        refuse(path, value, "an object with a format")
    form = _old_format(value, path) if "structures" in value else value.get("format")
    if not isinstance(form, dict):
        refuse(f"{path}.format", form, "an object with a type, as xgrammar's structural tags have it")
    checked = _checked(form, f"{path}.format")
    return structural_tag_grammar({"type": "structural_tag", "format": checked}, path)


def _old_format(value: Mapping[str, Any], path: str) -> dict[str, Any]:
    """`structures` of {begin, schema, end} after `triggers`, as older clients write it."""
    structures = value["structures"]
    if not isinstance(structures, list) or not all(isinstance(item, dict) for item in structures):
        refuse(f"{path}.structures", structures, "a list of objects with begin, schema and end")
    tags = [
        {
            "type": "tag",
            "begin": item.get("begin"),
            "content": {"type": "json_schema", "json_schema": item.get("schema", {})},
            "end": item.get("end"),
        }
        for item in structures
    ]
    return {"type": "triggered_tags", "triggers": value.get("triggers"), "tags": tags}


def _checked(part: Any, path: str) -> Any:
    """A part of a structural tag whose JSON schemas are such that a grammar keeps to them."""
    if isinstance(part, list):
        return [_checked(item, f"{path}[{at}]") for at, item in enumerate(part)]
    if not isinstance(part, dict):
        return part
    match part.get("type"):
        case "json_schema":
            return _checked_schema(part, path)
        case "regex" | "grammar" as kind:
            name = "pattern" if kind == "regex" else "grammar"
            if isinstance(part.get(name), str):
                whole_characters(part[name], f"{path}.{name}")
            return part
        case kind if "json_schema" in part:
            refuse(f"{path}.type", kind, '"json_schema" where there is a json_schema: others are not kept to')
    return {name: _checked(item, f"{path}.{name}") for name, item in part.items()}


def _checked_schema(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    if part.get("style") not in (None, "json"):
        refuse(f"{path}.style", part["style"], '"json": schemas are not kept to in other styles')
    if part.get("any_order"):
        refuse(f"{path}.any_order", part["any_order"], "false: in any order, required properties could be missing")
    schema = check_schema(part.get("json_schema"), f"{path}.json_schema")
    return {"max_whitespace_cnt": MAX_WHITESPACE, **part, "json_schema": schema}


def _text(value: Any, path: str, what: str) -> str:
    if not isinstance(value, str) or not value:
        refuse(path, value, f"{what}, as a string")
    return value


def _read_object(value: Any, path: str) -> GrammarSpec:
    return json_object_grammar(path)


_READERS: dict[str, _Reader] = {
    "regex": _read_regex,
    "ebnf": _read_ebnf,
    "structural_tag": _read_structural_tag,
    "guided_json": _read_json,
    "guided_regex": _read_regex,
    "guided_choice": _read_choice,
    "guided_grammar": _read_ebnf,
}
_MEMBERS: dict[str, _Reader] = {
    "json": _read_json,
    "regex": _read_regex,
    "choice": _read_choice,
    "grammar": _read_ebnf,
    "json_object": _read_object,
    "structural_tag": _read_structural_tag,
}
