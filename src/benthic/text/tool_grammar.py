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
from benthic.text.parameter_grammar import ANY_TEXT, any_parameters, either, marked, parameters_format, sequence
from benthic.text.tokenizer import DSML

BLOCK_BEGIN = f"\n\n<{DSML}tool_calls>\n"
"""With this a prompt ends where a call is forced without thinking."""
MAX_TOOLS_BYTES = 512 << 10
"""Of the grammar of all tools."""
_BLOCK_END = f"</{DSML}tool_calls>"
_CALL_END = f"</{DSML}invoke>\n"


class Tool(NamedTuple):
    """A function that the reply may call."""

    name: str
    parameters: dict[str, Any] | None
    is_strict: bool
    place: str = "tools"
    """Of its parameters in the request."""


def tool_calls_grammar(
    tools: Sequence[Tool], *, is_forced: bool, is_parallel: bool, is_begun: bool = False, answer: GrammarSpec | None
) -> GrammarSpec | None:
    """What a reply with these tools must keep to; None: nothing.

    Args:
        tools: those offered.
        is_forced: whether the reply must be a call.
        is_parallel: whether it may hold more than one.
        is_begun: whether the prompt ends with `BLOCK_BEGIN`.
        answer: what a reply without calls must keep to.

    Raises:
        BadSchema: the parameters of a strict tool cannot be kept to; `param` is their place.
    """
    if not is_forced and is_parallel and answer is None and not any(tool.is_strict for tool in tools):
        return None
    calls: dict[str, Any] = either([_call(tool, is_forced) for tool in tools])
    if is_parallel:
        calls = {"type": "plus", "content": calls}
    if not is_forced and answer is None:
        return _spec(_text_then(calls))
    block = sequence([*([] if is_begun else [marked(BLOCK_BEGIN)]), calls, marked(_BLOCK_END)])
    return _spec(block if is_forced or answer is None else either([_as_format(answer), block]))


def _call(tool: Tool, is_forced: bool) -> dict[str, Any]:
    begin = marked(f'<{DSML}invoke name="{tool.name}">\n')
    return sequence([begin, _parameters(tool, is_forced), marked(_CALL_END)])


def _parameters(tool: Tool, is_forced: bool) -> dict[str, Any]:
    if tool.parameters is None or not (tool.is_strict or is_forced):
        return any_parameters()
    try:
        return parameters_format(check_schema(tool.parameters, tool.place, is_markup=True), tool.place)
    except BadSchema:
        if tool.is_strict:
            raise
        return any_parameters()


def _text_then(calls: dict[str, Any]) -> dict[str, Any]:
    """Any text, and calls at its end where there are some: the token of the markup begins them."""
    block = sequence([marked(BLOCK_BEGIN.lstrip("\n<")), calls, marked(_BLOCK_END)])
    return sequence([ANY_TEXT, {"type": "optional", "content": block}])


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


def _spec(form: dict[str, Any]) -> GrammarSpec:
    return structural_tag_grammar({"type": "structural_tag", "format": form}, "tools", max_bytes=MAX_TOOLS_BYTES)
