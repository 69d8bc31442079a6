"""The turns of a request: what the recipe would refuse without saying where is checked, or rewritten."""

import json
from typing import Any

from benthic.text.content import check_chat_parts, check_text_only
from benthic.text.fields import refuse
from benthic.text.protocol_fields import Protocol
from benthic.text.responses_fields import rewrite_item

CHAT_ROLES = ("system", "developer", "user", "assistant", "tool", "latest_reminder")


def rewrite_turns(protocol: Protocol, body: dict[str, Any]) -> None:
    """Replace the list of turns by a checked copy: developer is system, object arguments are their JSON text.

    Raises:
        RequestError: the turns are no list of objects, a chat role is unknown, or an item cannot be resolved.
    """
    field = "input" if protocol == "responses" else "messages"
    turns = body.get(field)
    if protocol == "responses" and isinstance(turns, str):
        return
    if not isinstance(turns, list) or not turns:
        refuse(field, turns, "a list of at least one message")
    rewrite = {"chat": _chat_turn, "responses": _responses_item, "messages": _messages_turn}[protocol]
    for position, turn in enumerate(turns):
        if not isinstance(turn, dict):
            refuse(f"{field}[{position}]", turn, "an object")
    body[field] = [rewrite(turn, f"{field}[{position}]") for position, turn in enumerate(turns)]


def _chat_turn(turn: dict[str, Any], path: str) -> dict[str, Any]:
    role = turn.get("role")
    if role not in CHAT_ROLES:
        refuse(f"{path}.role", role, f"one of {', '.join(CHAT_ROLES)}")
    content = turn.get("content")
    if content is None and role == "assistant" and not turn.get("tool_calls"):
        refuse(f"{path}.content", None, "text unless there are tool_calls")
    if content is None and role != "assistant":
        refuse(f"{path}.content", None, "a string or a list of parts")
    if content is not None and not isinstance(content, str | list):
        refuse(f"{path}.content", content, "a string or a list of parts")
    if isinstance(content, list):
        check_chat_parts(content, f"{path}.content")
    for name in ("reasoning_content", "name", "tool_call_id"):
        if turn.get(name) is not None and not isinstance(turn[name], str):
            refuse(f"{path}.{name}", turn[name], "a string")
    if role == "tool" and turn.get("tool_call_id") is None:
        refuse(f"{path}.tool_call_id", None, "the id of the tool call that this answers")
    turn = dict(turn)
    if role == "developer":
        turn["role"] = "system"
    if turn.get("tool_calls") is not None:
        turn["tool_calls"] = _tool_calls(turn["tool_calls"], f"{path}.tool_calls")
    return turn


def _tool_calls(calls: Any, path: str) -> list[Any]:
    if not isinstance(calls, list) or not calls:
        refuse(path, calls, "a list of at least one tool call, or absent")
    return [_tool_call(call, f"{path}[{position}]") for position, call in enumerate(calls)]


def _tool_call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        refuse(f"{path}.function", function, "an object with name and arguments")
    if call.get("type", "function") != "function":
        refuse(f"{path}.type", call["type"], '"function"')
    if not isinstance(call.get("id"), str):
        refuse(f"{path}.id", call.get("id"), "a string")
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        arguments = json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        refuse(f"{path}.function.arguments", arguments, "JSON text or an object")
    if not isinstance(function.get("name"), str):
        refuse(f"{path}.function.name", function.get("name"), "a string")
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _responses_item(item: dict[str, Any], path: str) -> dict[str, Any]:
    check_text_only(item, path)
    item = rewrite_item(item, path)
    return {**item, "role": "system"} if item.get("role") == "developer" else item


def _messages_turn(turn: dict[str, Any], path: str) -> dict[str, Any]:
    role = turn.get("role")
    if role not in ("user", "assistant", "system"):
        refuse(f"{path}.role", role, "one of user, assistant, system")
    check_text_only(turn, path)
    content = turn.get("content")
    if role == "assistant" and isinstance(content, list):
        # Nobody but the server that hid it can read it; without it, a conversation begun there can go on here.
        shown = [part for part in content if not (isinstance(part, dict) and part.get("type") == "redacted_thinking")]
        return {**turn, "content": shown if shown or not content else ""}
    return turn
