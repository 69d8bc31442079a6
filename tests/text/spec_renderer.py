"""An independent reading of the prompt rules (model.md 6.1 to 6.6), written from the text, sharing no code with ours.

It covers what a chat request can say: one system message, users, assistants, tool results, tools, a response schema.
"""

import json
from pathlib import Path
from typing import Any

MAX_TEXT = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, "
    "rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
)
BEYOND_TEXT = (
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the "
    "problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying "
    "cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain "
    "that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
EFFORT_TEXT = {
    "2026-04": {None: "", "low": "", "high": "", "max": MAX_TEXT},
    "recipe": {None: MAX_TEXT, "low": "", "high": MAX_TEXT, "max": BEYOND_TEXT},
}
TOOLS_TEXT = (Path(__file__).parent / "tools_block.txt").read_text(encoding="utf-8")
FORMAT_TEXT = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


def render(
    messages: list[dict[str, Any]],
    *,
    thinking: bool,
    dialect: str,
    effort: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    schema: dict[str, Any] | None = None,
) -> str:
    turns = merge(messages)
    system = "".join(turn["content"] for turn in turns if turn["role"] == "system")
    if tools:
        schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        system += "\n\n" + TOOLS_TEXT.replace("{schemas}", schemas)
    if schema is not None:
        system += "\n\n" + FORMAT_TEXT + json.dumps(schema, ensure_ascii=False)
    out = "<｜begin▁of▁sentence｜>" + (EFFORT_TEXT[dialect][effort] if thinking else "") + system
    last_user = max(i for i, turn in enumerate(turns) if turn["role"] == "user")
    for position, turn in enumerate(turns):
        keeps = thinking and (bool(tools) or position > last_user)
        if turn["role"] == "user":
            out += "<｜User｜>" + turn["content"]
            opens = thinking and (bool(tools) or position >= last_user)
            out += "<｜Assistant｜>" + ("<think>" if opens else "</think>")
        if turn["role"] == "assistant":
            out += (turn.get("reasoning_content") or "") + "</think>" if keeps else ""
            out += turn.get("content") or ""
            if turn.get("tool_calls"):
                out += "\n\n" + render_calls(turn["tool_calls"], dialect)
            out += "<｜end▁of▁sentence｜>"
    return out


def merge(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbouring user and tool messages are one user turn; results in the order of the calls they answer."""
    turns: list[dict[str, Any]] = []
    calls: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            calls = [call["id"] for call in message.get("tool_calls") or ()]
        if message["role"] not in ("user", "tool"):
            turns.append(dict(message))
            continue
        is_result = message["role"] == "tool"
        text = f"<tool_result>{message['content']}</tool_result>" if is_result else message["content"]
        rank = calls.index(message["tool_call_id"]) if is_result else None
        if turns and turns[-1]["role"] == "user":
            before_rank, before = turns[-1]["parts"][-1]
            if rank is None and before_rank is None:  # what the rules leave open: an empty message adds no blank line
                turns[-1]["parts"][-1] = (None, "\n\n".join(filter(None, (before, text))))
            else:
                turns[-1]["parts"].append((rank, text))
        else:
            turns.append({"role": "user", "parts": [(rank, text)]})
    for turn in turns:
        if turn["role"] == "user":
            results = iter(sorted(part for part in turn["parts"] if part[0] is not None))
            turn["content"] = "\n\n".join(text if rank is None else next(results)[1] for rank, text in turn["parts"])
    return turns


def render_calls(calls: list[dict[str, Any]], dialect: str) -> str:
    invokes = []
    for call in calls:
        arguments = json.loads(call["function"]["arguments"])
        lines = []
        for key, value in arguments.items():
            is_string = isinstance(value, str)
            text = value if is_string else json.dumps(value, ensure_ascii=False)
            flag = "true" if is_string else "false"
            lines.append(f'<｜DSML｜parameter name="{key}" string="{flag}">{text}</｜DSML｜parameter>\n')
        body = "".join(lines) or ("\n" if dialect == "2026-04" else "")
        invokes.append(f'<｜DSML｜invoke name="{call["function"]["name"]}">\n{body}</｜DSML｜invoke>')
    return "<｜DSML｜tool_calls>\n" + "\n".join(invokes) + "\n</｜DSML｜tool_calls>"
