"""What the three protocols put on the wire, as far as replies must be watched, corrected or joined."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from benthic.text.protocol_fields import Protocol


class Payload(NamedTuple):
    """One event before it is text: `name` is None for chat completions."""

    name: str | None
    data: dict[str, Any]


class Event(NamedTuple):
    """One server-sent event."""

    name: str | None
    data: str

    @property
    def wire(self) -> str:
        """The lines to send."""
        head = f"event: {self.name}\n" if self.name is not None else ""
        return f"{head}data: {self.data}\n\n"


def to_event(payload: Payload) -> Event:
    """Compact JSON, in the characters' own spelling."""
    return Event(payload.name, json.dumps(payload.data, ensure_ascii=False, separators=(",", ":")))


class ToolCallWatch:
    """Joins the argument deltas of the tool calls that pass by."""

    def __init__(self) -> None:
        self._calls: dict[int, list[str]] = {}

    @property
    def calls(self) -> list[tuple[str, str]]:
        """(name, arguments so far) in order of appearance."""
        return [(name, arguments) for name, arguments in self._calls.values()]

    def watch(self, protocol: Protocol, data: dict[str, Any]) -> None:
        """Take one event's data."""
        for index, name, arguments in _DELTAS[protocol](data):
            call = self._calls.setdefault(index, ["", ""])
            call[0] += name
            call[1] += arguments


def correct_finish(protocol: Protocol, data: dict[str, Any], errors: Sequence[tuple[str, str, str]]) -> None:
    """Where a broken tool call would be reported as a complete one, say so, and list what is wrong; in place.

    `data` is the event that ends a reply, or the whole reply.
    """
    if not errors:
        return
    listed = [{"name": name, "arguments": arguments, "message": problem} for name, arguments, problem in errors]
    if protocol == "chat":
        choice = data["choices"][0] if data["choices"] else {}
        if choice.get("finish_reason") is not None:
            choice["finish_reason"] = choice["finish_reason"].replace("tool_calls", "stop")
            choice["tool_call_errors"] = listed
    elif protocol == "messages":
        place = data.get("delta", data)
        if place.get("stop_reason") == "tool_use":
            place["stop_reason"] = "end_turn"
        place["tool_call_errors"] = listed
    else:
        place = data.get("response", data)
        place["tool_call_errors"] = listed


def correct_usage(protocol: Protocol, data: dict[str, Any], cached_len: int, reasoning_len: int | None = None) -> None:
    """Says in a usage, if there is one, how many prompt tokens came from the cache; in place.

    `reasoning_len` is told in messages, where the recipe does not count them; None where there was no thinking.
    """
    usage = (data.get("response", data) if protocol == "responses" else data).get("usage")
    if not usage:
        return
    if protocol == "chat":
        usage["prompt_tokens_details"] = {"cached_tokens": cached_len}
        usage["prompt_cache_hit_tokens"] = cached_len
        usage["prompt_cache_miss_tokens"] = usage["prompt_tokens"] - cached_len
    elif protocol == "responses":
        usage["input_tokens_details"] = {"cached_tokens": cached_len, "cache_write_tokens": 0}
        usage["prompt_cache_hit_tokens"] = cached_len
        usage["prompt_cache_miss_tokens"] = usage["input_tokens"] - cached_len
    else:
        prompt_len = usage["input_tokens"] + usage["cache_read_input_tokens"]
        usage["input_tokens"] = usage["prompt_cache_miss_tokens"] = prompt_len - cached_len
        usage["cache_read_input_tokens"] = usage["prompt_cache_hit_tokens"] = cached_len
        if reasoning_len is not None:
            usage["output_tokens_details"] = {"thinking_tokens": reasoning_len}


def add_drafts(usage: dict[str, Any], drafted: int, accepted: int) -> None:
    """Says in a chat usage how many tokens were guessed ahead right and wrong, if any were; in place."""
    if drafted and usage:
        details = usage.get("completion_tokens_details") or {}
        guessed = {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}
        usage["completion_tokens_details"] = details | guessed


def is_last(protocol: Protocol, data: dict[str, Any]) -> bool:
    """Whether an event says why the reply ended."""
    if protocol == "chat":
        return any(choice["finish_reason"] is not None for choice in data["choices"])
    return data["type"] in ("message_delta", "response.completed", "response.incomplete")


def says_nothing(protocol: Protocol, data: dict[str, Any]) -> bool:
    """Whether an event is an empty delta, as tokens without text leave them."""
    if protocol == "responses":
        return data["type"].endswith(".delta") and not data["delta"] and not data.get("logprobs")
    if protocol == "messages":
        return data["type"] == "content_block_delta" and data["delta"].get("text") == ""
    choice = data["choices"][0]
    return choice["finish_reason"] is None and choice["logprobs"] is None and not any(choice["delta"].values())


def _chat_deltas(data: dict[str, Any]) -> list[tuple[int, str, str]]:
    deltas = [call for choice in data["choices"] for call in choice["delta"].get("tool_calls") or ()]
    return [
        (call["index"], call["function"].get("name") or "", call["function"].get("arguments") or "") for call in deltas
    ]


def _responses_deltas(data: dict[str, Any]) -> list[tuple[int, str, str]]:
    if data["type"] == "response.output_item.added" and data["item"]["type"] == "function_call":
        return [(data["output_index"], data["item"]["name"], data["item"].get("arguments") or "")]
    if data["type"] == "response.function_call_arguments.delta":
        return [(data["output_index"], "", data["delta"])]
    return []


def _messages_deltas(data: dict[str, Any]) -> list[tuple[int, str, str]]:
    if data["type"] == "content_block_start" and data["content_block"]["type"] == "tool_use":
        return [(data["index"], data["content_block"]["name"], "")]
    if data["type"] == "content_block_delta" and data["delta"]["type"] == "input_json_delta":
        return [(data["index"], "", data["delta"]["partial_json"])]
    return []


_DELTAS = {"chat": _chat_deltas, "responses": _responses_deltas, "messages": _messages_deltas}
