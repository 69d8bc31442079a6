"""The one grammar of a reply: the format that was asked for, the tools that may be called, and where it begins."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import deepseek_recipe as recipe

from benthic.text.grammar import GrammarSpec
from benthic.text.refusal import parameters_place
from benthic.text.tool_grammar import Tool, tool_calls_grammar


def reply_grammar(
    conversation: recipe.Conversation,
    *,
    answer: GrammarSpec | None,
    given_tools: Any,
    strict_tools: Collection[str],
    is_forced: bool,
    is_parallel: bool,
    think_end_id: int | None,
    begun: str,
) -> GrammarSpec | None:
    """What the tokens of a reply must spell; None: nothing.

    Args:
        conversation: converted, with the tools that the reply may call.
        answer: what a reply without calls must conform to.
        given_tools: as the request has them, for refusals.
        strict_tools: names of tools whose parameters must keep to their schema.
        is_forced: whether the reply must be a call.
        is_parallel: whether it may hold several.
        think_end_id: the token after which the answer begins; None: the reply begins with it.
        begun: text of the reply that the prompt ends with.

    Raises:
        BadSchema: a strict tool's parameters cannot be kept to.
    """
    tools = [
        Tool(tool.name, tool.parameters, tool.name in strict_tools, parameters_place(given_tools, tool.name))
        for tool in conversation.tools or ()
    ]
    spec = answer
    if tools and conversation.tool_choice != "none":
        spec = tool_calls_grammar(
            tools, is_forced=is_forced, is_parallel=is_parallel, is_begun=think_end_id is None, answer=answer
        )
    if spec is None:
        return None
    if think_end_id is not None:
        return replace(spec, starts_after=think_end_id)
    return replace(spec, prefix="" if tools else begun)
