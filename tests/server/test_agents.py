"""What coding agents send, field by field, is served: of one that speaks Responses, and of one that speaks Messages."""

import json
from typing import Any

import pytest

from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio
CALL = (
    '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="shell">\n'
    '<｜DSML｜parameter name="command" string="false">["ls"]</｜DSML｜parameter>\n'
    "</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + EOS
)
SHELL: Any = {
    "type": "object",
    "properties": {"command": {"type": "array", "items": {"type": "string"}}},
    "required": ["command"],
    "additionalProperties": False,
}
OVER_RESPONSES = {
    "model": "tiny",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: read-only."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
    ],
    "tools": [
        {"type": "function", "name": "shell", "description": "Runs.", "strict": False, "parameters": SHELL},
        {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": {"type": "grammar"}},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "019a",
    "text": {"verbosity": "low"},
    "client_metadata": {"x": "y"},
}
OVER_MESSAGES = {
    "model": "tiny",
    "max_tokens": 32000,
    "system": [
        {"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "The folder is /src.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"},
                {"type": "text", "text": "List the files.", "cache_control": {"type": "ephemeral"}},
            ],
        }
    ],
    "tools": [
        {"name": "shell", "description": "Runs.", "input_schema": SHELL, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "name": "Read", "input_schema": {"type": "object", "properties": {}}},
    ],
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "metadata": {"user_id": "u"},
    "stream": True,
}


def events_of(response: Any) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    frames = [frame for frame in response.text.split("\n\n") if frame and not frame.startswith(":")]
    return [json.loads(frame.partition("data: ")[2]) for frame in frames]


async def test_an_agent_over_responses_goes_two_rounds(scripted: Any) -> None:
    async with scripted("Look first.</think>\n\n" + CALL, context_len=8192) as up:
        events = events_of(await up.client.post("/v1/responses", json=OVER_RESPONSES))
        items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        reasoning, call = items
        assert json.loads(call["arguments"]) == {"command": ["ls"]}
        del reasoning["content"]  # as it keeps reasoning
        result = {"type": "function_call_output", "call_id": call["call_id"], "output": "main.py"}
        up.engine.said = "One file.</think>There is main.py." + EOS
        again = {**OVER_RESPONSES, "input": [*OVER_RESPONSES["input"], reasoning, call, result]}  # type: ignore[misc]
        last = events_of(await up.client.post("/v1/responses", json=again))[-1]
        assert last["type"] == "response.completed"
        assert last["response"]["output"][-1]["content"][0]["text"] == "There is main.py."
        prompt = up.service.tokenizer.decode(list(up.engine.requests[-1].prompt_ids))
        assert "<think>Look first.</think>" in prompt
        assert "Sandbox: read-only." in prompt.partition("List the files.")[0]


async def test_an_agent_over_messages_goes_two_rounds(scripted: Any) -> None:
    async with scripted("Look first.</think>\n\n" + CALL, context_len=8192) as up:
        path = "/v1/messages?beta=true"
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "context-management-2025-06-27"}
        events = events_of(await up.client.post(path, json=OVER_MESSAGES, headers=headers))
        blocks = [event["content_block"] for event in events if event["type"] == "content_block_start"]
        assert [block["type"] for block in blocks] == ["thinking", "tool_use"]
        said = [
            {"type": "redacted_thinking", "data": "hidden elsewhere"},
            {"type": "thinking", "thinking": "Look first.", "signature": "any"},
            {**blocks[1], "input": {"command": ["ls"]}},
        ]
        result = {
            "type": "tool_result",
            "tool_use_id": blocks[1]["id"],
            "content": [{"type": "text", "text": "main.py"}],
        }
        up.engine.said = "One file.</think>There is main.py." + EOS
        history = [
            *OVER_MESSAGES["messages"],  # type: ignore[misc]
            {"role": "assistant", "content": said},
            {"role": "user", "content": [result]},
        ]
        body = {**OVER_MESSAGES, "messages": history}
        counted = (await up.client.post("/v1/messages/count_tokens?beta=true", json=body)).json()
        events = events_of(await up.client.post(path, json=body, headers=headers))
        texts = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
        assert "".join(texts) == "There is main.py."
        assert events[0]["message"]["usage"]["input_tokens"] == counted["input_tokens"]
        prompt = up.service.tokenizer.decode(list(up.engine.requests[-1].prompt_ids))
        assert "<think>Look first.</think>" in prompt
        assert "hidden elsewhere" not in prompt
