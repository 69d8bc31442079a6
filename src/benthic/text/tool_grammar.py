"""Grammars of tool calls in the markup that V4's replies have: which function may be called, and with what.

    \n\n<DSML tool_calls>\n (<DSML invoke name="f">\n parameters </DSML invoke>\n)+ </DSML tool_calls>

The parameters of a strict tool keep to its schema. Those of any tool do where a call is forced, unless the schema asks
for what a grammar cannot keep to: then they are any parameters.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from benthic.errors import BadSchema
from benthic.text.grammar import GrammarSpec, structural_tag_grammar
from benthic.text.grammar_compiler import MAX_WHITESPACE
from benthic.text.json_schema_check import check_schema
from benthic.text.tokenizer import DSML

BLOCK_BEGIN = f"\n\n<{DSML}tool_calls>\n"
"""With this a prompt ends where a call is forced without thinking."""
_BLOCK_END = f"</{DSML}tool_calls>"
_CALL_END = f"</{DSML}invoke>\n"
_ANY: dict[str, Any] = {"type": "object"}


class Tool(NamedTuple):
    """A function that the reply may call."""

    name: str
    parameters: dict[str, Any] | None
    is_strict: bool
    place: str = "tools"
    """Of its parameters in the request."""


def tool_calls_grammar(
    tools: Sequence[Tool], *, is_forced: bool, is_parallel: bool, answer: GrammarSpec | None
) -> GrammarSpec | None:
    """What a reply with these tools must keep to; None: nothing.

    Args:
        tools: those offered.
        is_forced: whether the reply must be a call.
        is_parallel: whether it may hold more than one.
        answer: what a reply without calls must keep to.

    Raises:
        BadSchema: the parameters of a strict tool cannot be kept to; `param` is their place.
    """
    if not is_forced and is_parallel and answer is None and not any(tool.is_strict for tool in tools):
        return None
    calls = {
        "type": "tags_with_separator",
        "tags": [_call(tool, is_forced) for tool in tools],
        "separator": "",
        "at_least_one": True,
        "stop_after_first": not is_parallel,
    }
    if not is_forced and answer is None:
        return _spec(_text_then(calls))
    block = {"type": "sequence", "elements": [_text(BLOCK_BEGIN), calls, _text(_BLOCK_END)]}
    if is_forced or answer is None:
        return _spec(block)
    return _spec({"type": "or", "elements": [_as_format(answer), block]})


def _call(tool: Tool, is_forced: bool) -> dict[str, Any]:
    schema = _parameters(tool, is_forced)
    content: dict[str, Any] = {
        "type": "json_schema",
        "json_schema": schema,
        "style": "deepseek_xml",
        "max_whitespace_cnt": MAX_WHITESPACE,
    }
    if not schema.get("required"):  # in the April dialect a call without parameters has an empty line
        content = {"type": "or", "elements": [content, _text("\n")]}
    return {"type": "tag", "begin": f'<{DSML}invoke name="{tool.name}">\n', "content": content, "end": _CALL_END}


def _parameters(tool: Tool, is_forced: bool) -> dict[str, Any]:
    if tool.parameters is None or not (tool.is_strict or is_forced):
        return _ANY
    try:
        schema = check_schema(tool.parameters, tool.place, is_markup=True)
        if schema.get("type") != "object":
            raise BadSchema(f"{tool.place} must be of the type object, and not be joined of several", param=tool.place)
    except BadSchema:
        if tool.is_strict:
            raise
        return _ANY
    return schema


def _text_then(calls: dict[str, Any]) -> dict[str, Any]:
    """Any text, and calls at its end where there are some."""
    block = {"type": "tag", "begin": BLOCK_BEGIN.lstrip("\n"), "content": calls, "end": _BLOCK_END}
    return {
        "type": "triggered_tags",
        "triggers": [BLOCK_BEGIN.strip("\n")],
        "tags": [block],
        "stop_after_first": True,
    }


def _as_format(answer: GrammarSpec) -> dict[str, Any]:
    """A grammar as a part of a structural tag."""
    match answer.kind:
        case "json_schema":
            schema = json.loads(answer.source)
            return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}
        case "regex":
            return {"type": "regex", "pattern": answer.source}
        case "ebnf":
            return {"type": "grammar", "grammar": answer.source}
        case "structural_tag":
            return dict(json.loads(answer.source)["format"])


def _text(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def _spec(form: dict[str, Any]) -> GrammarSpec:
    return structural_tag_grammar({"type": "structural_tag", "format": form}, "tools", has_markup=True)
