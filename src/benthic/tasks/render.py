"""A conversation as the text that the model sees, in pieces with loss weights.

This is DeepSeek's prompt format (April 2026 dialect), written out for speed: training renders thousands of
conversations a second. `tests/tasks/test_render.py` holds it to the server's own renderer, token for token.
"""

import json
from dataclasses import dataclass

from benthic.tasks.conversation import Conversation, Exchange, ToolCall

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, END_THINK = "<think>", "</think>"
DSML = "｜DSML｜"

DIRECT_WEIGHT = 4.0
"""Loss weight of answers without reasoning: few tokens, and the hard ones; with weight 1 they drown."""

EFFORT = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
TOOLS_BEFORE = f"""## Tools

You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a "<{DSML}tool_calls>" block like the following:

<{DSML}tool_calls>
<{DSML}invoke name="$TOOL_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$TOOL_NAME2">
...
</{DSML}invoke>
</{DSML}tool_calls>

String parameters should be specified as is and set `string="true"`. \
For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), \
you MUST output your complete reasoning inside {THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

"""
TOOLS_AFTER = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
SCHEMA_BEFORE = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
JSON_OBJECT = (
    "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY."
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of text, the loss weight of its tokens (0: a prompt), and whether it is tokenised letter by letter."""

    text: str
    weight: float = 0.0
    spelled: bool = False


def render(conversation: Conversation) -> list[Segment]:
    """All segments of a conversation, replies included; their texts joined are what the server would have rendered.

    Without tools, the reasoning of earlier turns is dropped, as the format demands. Such an earlier answer is still
    trained on, unless direct mode would have given another one.
    """
    segments = [Segment(BOS + render_system(conversation))]
    last = len(conversation.exchanges) - 1
    for index, exchange in enumerate(conversation.exchanges):
        shows_reasoning = conversation.thinking and (index == last or bool(conversation.tools))
        segments.append(Segment(USER + exchange.question + ASSISTANT))
        segments += render_replies(exchange, conversation.thinking, shows_reasoning)
    return segments


def render_system(conversation: Conversation) -> str:
    parts = [conversation.system]
    if conversation.tools:
        schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in conversation.tools)
        parts.append(TOOLS_BEFORE + schemas + TOOLS_AFTER)
    if conversation.response_format == "json_object":
        parts.append(JSON_OBJECT)
    elif isinstance(conversation.response_format, dict):
        parts.append(SCHEMA_BEFORE + json.dumps(conversation.response_format, ensure_ascii=False))
    effort = EFFORT if conversation.thinking and conversation.maximum_effort else ""
    return effort + "\n\n".join(parts)


def render_replies(exchange: Exchange, thinking: bool, shows_reasoning: bool) -> list[Segment]:
    segments = []
    if exchange.calls:
        segments += render_thought(exchange.reasoning, shows_reasoning)
        segments += [Segment(render_calls(exchange.calls) + EOS, 1.0)]
        results = "\n\n".join(f"<tool_result>{result}</tool_result>" for result in exchange.results)
        segments.append(Segment(USER + results + ASSISTANT))
    segments += render_thought(exchange.final_reasoning if exchange.calls else exchange.reasoning, shows_reasoning)
    segments.append(
        Segment(exchange.expected(thinking), answer_weight(exchange, thinking, shows_reasoning), exchange.spelled)
    )
    segments.append(Segment(EOS, 1.0))
    return segments


def render_thought(reasoning: str, shows_reasoning: bool) -> list[Segment]:
    """The header's think token is part of the prompt; what thinking writes, its end included, is learned."""
    if shows_reasoning:
        return [Segment(THINK), Segment(reasoning + END_THINK, 1.0)]
    return [Segment(END_THINK)]


def answer_weight(exchange: Exchange, thinking: bool, shows_reasoning: bool) -> float:
    if thinking and not shows_reasoning and exchange.direct_answer is not None:
        return 0.0
    is_worked_out = shows_reasoning or bool(exchange.calls) or exchange.task in ("facts", "refusal")
    return 1.0 if is_worked_out else DIRECT_WEIGHT


def render_calls(calls: tuple[ToolCall, ...]) -> str:
    return f"\n\n<{DSML}tool_calls>\n" + "\n".join(map(render_call, calls)) + f"\n</{DSML}tool_calls>"


def render_call(call: ToolCall) -> str:
    parameters = "\n".join(render_parameter(key, value) for key, value in call.arguments.items())
    return f'<{DSML}invoke name="{call.name}">\n{parameters}\n</{DSML}invoke>'


def render_parameter(key: str, value: object) -> str:
    is_string = isinstance(value, str)
    text = value if is_string else json.dumps(value, ensure_ascii=False)
    return f'<{DSML}parameter name="{key}" string="{str(is_string).lower()}">{text}</{DSML}parameter>'
