"""What a client makes of an answer in each protocol, whole or put together from a stream: the same record."""

import json
from dataclasses import dataclass, field
from typing import Any

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ROUTES = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}
Frame = tuple[str | None, dict[str, Any]]
"""Name and data of one event."""


@dataclass
class Said:
    """One answer."""

    reasoning: str = ""
    content: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """(name, arguments as JSON text)."""
    finish: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    """`tool_call_errors`."""
    usage: dict[str, Any] = field(default_factory=dict)

    def without_counts(self) -> tuple[Any, ...]:
        """What does not depend on how the text was cut into tokens."""
        return self.reasoning, self.content, self.calls, self.finish, self.errors


def parse_frames(text: str) -> list[Frame]:
    """The events of a stream's body, without comments and [DONE]."""
    frames: list[Frame] = []
    for block in text.split("\n\n"):
        lines = dict(line.partition(": ")[::2] for line in block.split("\n") if line)
        if lines.get("data") not in (None, "[DONE]"):
            frames.append((lines.get("event"), json.loads(lines["data"])))
    return frames


def read_body(protocol: str, body: dict[str, Any]) -> Said:
    """An answer without stream."""
    return {"chat": _chat_body, "responses": _responses_body, "messages": _messages_body}[protocol](body)


def merge(protocol: str, frames: list[Frame]) -> Said:
    """An answer from its stream, read as clients do, with the order of events checked."""
    return {"chat": _merge_chat, "responses": _merge_responses, "messages": _merge_messages}[protocol](frames)


def _chat_body(body: dict[str, Any]) -> Said:
    [choice] = body["choices"]
    message = choice["message"]
    return Said(
        reasoning=message.get("reasoning_content") or "",
        content=message["content"] or "",
        calls=[(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()],
        finish=choice["finish_reason"],
        errors=choice.get("tool_call_errors", []),
        usage=body["usage"],
    )


def _merge_chat(frames: list[Frame]) -> Said:
    said = Said()
    for name, data in frames:
        assert name is None, name
        assert said.usage == {}, "usage is the last event"
        if not data["choices"]:
            said.usage = data["usage"]
            continue
        [choice] = data["choices"]
        assert said.finish is None, "nothing follows the finish reason"
        delta = choice["delta"]
        said.reasoning += delta.get("reasoning_content") or ""
        said.content += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            if call["index"] == len(said.calls):
                said.calls.append((call["function"]["name"], ""))
            name_of_call, arguments = said.calls[call["index"]]
            said.calls[call["index"]] = (name_of_call, arguments + (call["function"].get("arguments") or ""))
        said.finish = choice["finish_reason"]
        said.errors = choice.get("tool_call_errors", [])
    return said


def _responses_body(body: dict[str, Any]) -> Said:
    said = Said(finish=body["status"], errors=body.get("tool_call_errors", []), usage=body["usage"])
    for item in body["output"]:
        if item["type"] == "reasoning":
            said.reasoning += "".join(part["text"] for part in item["content"])
        elif item["type"] == "message":
            said.content += "".join(part["text"] for part in item["content"])
        else:
            said.calls.append((item["name"], item["arguments"]))
    return said


def _merge_responses(frames: list[Frame]) -> Said:
    said = Said()
    arguments: dict[int, str] = {}
    assert [data["sequence_number"] for _, data in frames] == list(range(len(frames)))
    for name, data in frames:
        assert name == data["type"]
        if name == "response.reasoning_text.delta":
            said.reasoning += data["delta"]
        elif name == "response.output_text.delta":
            said.content += data["delta"]
        elif name == "response.function_call_arguments.delta":
            arguments[data["output_index"]] = arguments.get(data["output_index"], "") + data["delta"]
        elif name == "response.output_item.done" and data["item"]["type"] == "function_call":
            item = data["item"]
            assert arguments.get(data["output_index"], "") == item["arguments"]
            said.calls.append((item["name"], item["arguments"]))
    last, data = frames[-1]
    assert last in ("response.completed", "response.incomplete")
    whole = _responses_body(data["response"])
    assert (whole.reasoning, whole.content, whole.calls) == (said.reasoning, said.content, said.calls)
    return whole


def _messages_body(body: dict[str, Any]) -> Said:
    said = Said(finish=body["stop_reason"], errors=body.get("tool_call_errors", []), usage=body["usage"])
    for block in body["content"]:
        said.reasoning += block.get("thinking", "")
        said.content += block.get("text", "")
        if block["type"] == "tool_use":
            said.calls.append((block["name"], json.dumps(block["input"], ensure_ascii=False)))
    return said


def _merge_messages(frames: list[Frame]) -> Said:
    said = Said()
    kinds = {"thinking_delta": "thinking", "signature_delta": "thinking", "text_delta": "text"}
    open_block: tuple[int, str] | None = None
    num_blocks = 0
    for name, data in frames:
        assert name == data["type"]
        if name == "content_block_start":
            assert open_block is None
            assert data["index"] == num_blocks
            open_block, num_blocks = (data["index"], data["content_block"]["type"]), num_blocks + 1
            if open_block[1] == "tool_use":
                said.calls.append((data["content_block"]["name"], ""))
        elif name == "content_block_delta":
            delta = data["delta"]
            assert open_block == (data["index"], kinds.get(delta["type"], "tool_use")), (open_block, data)
            said.reasoning += delta.get("thinking", "")
            said.content += delta.get("text", "")
            if delta["type"] == "input_json_delta":
                said.calls[-1] = (said.calls[-1][0], said.calls[-1][1] + delta["partial_json"])
        elif name == "content_block_stop":
            assert open_block is not None
            assert open_block[0] == data["index"]
            open_block = None
        elif name == "message_delta":
            said.finish, said.usage = data["delta"]["stop_reason"], data["usage"]
            said.errors = data["delta"].get("tool_call_errors", [])
    assert (frames[0][0], frames[-1][0], open_block) == ("message_start", "message_stop", None)
    return said


async def both_ways(up: Any, protocol: str, **body: Any) -> Said:
    """The answer of a running server, the same streamed and whole."""
    options = {"stream_options": {"include_usage": True}} if protocol == "chat" else {}
    response = await up.post(ROUTES[protocol], **body, **options, stream=True)
    assert response.status_code == 200, response.text
    streamed = merge(protocol, parse_frames(response.text))
    whole = read_body(protocol, await up.json(ROUTES[protocol], **body))
    if protocol == "messages":
        whole.calls = as_sent(whole.calls, streamed.calls)
    assert streamed == whole
    return streamed


def as_sent(whole: list[tuple[str, str]], streamed: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Calls of a whole Messages reply, where arguments are parsed if they can be, in the words of the stream."""
    for (name, arguments), (name_sent, sent) in zip(whole, streamed, strict=True):
        assert name == name_sent
        assert json.loads(arguments) == (json.loads(sent) if is_object(sent) else {})
    return streamed


def is_object(arguments: str) -> bool:
    """Whether a call with these arguments can be carried out."""
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False
