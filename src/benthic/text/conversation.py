"""Conversations and replies as the model reads them, on deepseek-recipe (rules: model.md section 6).

Three things the recipe leaves to us: the April dialect, changes to a converted conversation, and the
exact text of a *reply* (what the model has to generate after a prompt), which training data needs. Everything rendered
is a list of segments (text, is_control): control segments are one token each, the text between them is plain, so a
user's literal `</think>` never becomes the token. `Tokenizer.encode_segments` turns segments into ids.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import deepseek_recipe as recipe

from benthic.text.settings import Dialect
from benthic.text.tokenizer import ASSISTANT, EOS, Tokenizer

Effort = Literal["low", "high", "xhigh", "max"]

_APRIL_EFFORT: dict[Effort | None, Effort] = {
    None: "low",
    "low": "low",
    "high": "low",
    "xhigh": "low",
    "max": "high",
}
"""April to recipe: the recipe writes for `high` the text that April wrote for `max`, and for `low` none."""

_EMPTY_CALL = re.compile(r'\A(invoke name="[^"]*">\n)(</)\Z')
"""A call without arguments, in which April left a line empty. Whole between two DSML tokens only we can write it."""


class Rendered(NamedTuple):
    """A piece of conversation as (text, is_control) segments."""

    segments: tuple[tuple[str, bool], ...]

    @property
    def text(self) -> str:
        """The segments joined, for people."""
        return "".join(text for text, _ in self.segments)

    def encode(self, tokenizer: Tokenizer) -> list[int]:
        """Token ids, equal to those that the server would send to the model."""
        return tokenizer.encode_segments(self.segments)


def render(conversation: recipe.Conversation, dialect: Dialect) -> Rendered:
    """The prompt of a conversation whose effort `rebuild` has shifted to the dialect."""
    segments = _segments(recipe.DeepseekV4Encoding().render_conversation(conversation))
    if dialect == "2026-04":
        segments = [(_EMPTY_CALL.sub(r"\1\n\2", text), is_control) for text, is_control in segments]
    return Rendered(tuple(segments))


def render_reply(
    *,
    thinking: bool,
    content: str = "",
    reasoning: str = "",
    tool_calls: Sequence[Mapping[str, Any]] = (),
    dialect: Dialect = "2026-04",
) -> Rendered:
    """What the model generates after a prompt: reasoning, `</think>`, content, tool calls and EOS.

    A prompt followed by this reply is the beginning of the next turn's prompt wherever reasoning is kept (tools
    offered, or no thinking), so training on (prompt, reply) is training on what serving will see.

    Args:
        thinking: whether the prompt ended in `<think>`; without it the reasoning must be empty.
        content: the answer.
        reasoning: the thoughts.
        tool_calls: each {"name": str, "arguments": object or its JSON text}.
        dialect: the checkpoint's.
    """
    assert thinking or not reasoning, "a reply without thinking has no reasoning"
    calls = [
        recipe.ToolCall(f"call_{position}", call["name"], _json_text(call["arguments"]))
        for position, call in enumerate(tool_calls)
    ]
    turn = recipe.Conversation(
        [recipe.UserMessage(""), recipe.AssistantMessage(content, reasoning if thinking else None, calls or None)],
        thinking_mode=thinking,
        tools=[recipe.ToolDefinition("any")],  # with tools offered, no reasoning is dropped
        reasoning_effort="low",
    )
    segments = render(turn, dialect).segments
    start = segments.index((ASSISTANT, True)) + 2  # past the think token that the prompt ends with
    return Rendered(segments[start : segments.index((EOS, True)) + 1])


def rebuild(
    conversation: recipe.Conversation,
    dialect: Dialect,
    *,
    response_schema: dict[str, Any] | None = None,
    must_call_tool: bool = False,
    is_prefill: bool = False,
) -> recipe.Conversation:
    """A converted conversation with the effort shifted to the dialect, and what the conversion could not say."""
    schema = conversation.response_schema if response_schema is None else response_schema
    return recipe.Conversation(
        _with_prefill(conversation.messages) if is_prefill else conversation.messages,
        thinking_mode=conversation.thinking_mode,
        tools=conversation.tools,
        tool_choice="required" if must_call_tool else conversation.tool_choice,
        reasoning_effort=shift_effort(conversation.reasoning_effort, dialect),
        response_format="json_object" if conversation.response_format == "json_object" and schema is None else "text",
        response_schema=schema,
        response_regex=conversation.response_regex,
    )


def shift_effort(effort: Effort | None, dialect: Dialect) -> Effort | None:
    """The effort to tell the recipe so that it writes the dialect's text."""
    return _APRIL_EFFORT[effort] if dialect == "2026-04" else effort


def _with_prefill(messages: list[recipe.Message]) -> list[recipe.Message]:
    last = messages[-1]
    return [*messages[:-1], recipe.AssistantMessage(last.content, prefix=True)]


def _json_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _segments(rendered: recipe.RenderedPrompt) -> list[tuple[str, bool]]:
    segments: list[tuple[str, bool]] = []
    end = 0
    for start, stop in rendered.special_ranges:
        if start > end:
            segments.append((rendered.prompt[end:start], False))
        segments.append((rendered.prompt[start:stop], True))
        end = stop
    if end < len(rendered.prompt):
        segments.append((rendered.prompt[end:], False))
    return segments
