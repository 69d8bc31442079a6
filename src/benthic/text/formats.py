"""The output format of a conversation request, taken out of its body as far as the recipe must not see it."""

from typing import Any, NamedTuple

from benthic.text.fields import Body, read_object, refuse
from benthic.text.grammar import GrammarSpec
from benthic.text.grammar_fields import GRAMMAR_FIELDS, is_told, only_grammar, read_extension_grammar, read_format
from benthic.text.protocol_fields import Protocol
from benthic.text.shapes import check_response_format


class Taken(NamedTuple):
    """What was asked for."""

    grammar: GrammarSpec | None
    """What the reply must conform to."""
    told_schema: dict[str, Any] | None = None
    """A schema that the prompt must tell, where the recipe would drop it (Messages)."""


def take_format(protocol: Protocol, body: dict[str, Any]) -> Taken:
    """Read the format and the extension fields. What stays in the body is what the prompt tells the model about.

    Raises:
        BadSchema: a schema or grammar cannot be used; `param` is its place.
        RequestError: a field has a wrong shape, or there are several.
    """
    extension = read_extension_grammar(body)
    for name in GRAMMAR_FIELDS:
        body.pop(name, None)
    match protocol:
        case "chat":
            own, schema = _take_chat(body), None
        case "responses":
            own, schema = _take_responses(body), None
        case "messages":
            own, schema = _take_messages(body)
    return Taken(only_grammar([own, extension]), schema)


def _take_chat(body: dict[str, Any]) -> GrammarSpec | None:
    value = body.get("response_format")
    if value is None or is_told(value):
        check_response_format(value)
    grammar = read_format(value, "response_format", inner="json_schema")
    if value is None or not is_told(value):
        body.pop("response_format", None)
    elif value["type"] == "json_schema":
        body["response_format"] = {**value, "json_schema": _without_strict(value["json_schema"])}
    return grammar


def _take_responses(body: dict[str, Any]) -> GrammarSpec | None:
    text = read_object(body, "text")
    if text is None or text.get("format") is None:
        return None
    form = text["format"]
    grammar = read_format(form, "text.format")
    kept = {"format": _without_strict(form)} if is_told(form) else {}
    body["text"] = {name: value for name, value in text.items() if name != "format"} | kept
    return grammar


def _take_messages(body: dict[str, Any]) -> tuple[GrammarSpec | None, dict[str, Any] | None]:
    config = read_object(body, "output_config") or {}
    name, given = "output_config.format", config.get("format")
    if body.get("output_format") is not None:
        name, given = "output_format", body["output_format"]
    body.pop("output_format", None)
    if given is None:
        return None, None
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict) or given.get("type") != "json_schema":
        refuse(name, given, 'an object with type "json_schema" and an object schema')
    return read_format(given, name), dict(schema)


def _without_strict(holder: Body) -> dict[str, Any]:
    """A strict schema must say more to please the recipe than it must to be kept to."""
    return {name: value for name, value in holder.items() if name != "strict"}
