"""A conversation as a client would have sent it: bodies for `/v1/chat/completions`."""

import json
from typing import Any

from benthic.tasks.conversation import Conversation, Exchange, ToolCall

Body = dict[str, Any]
"""A chat-completions request body."""

MAX_REPLY_TOKENS = 400
"""More than any right reply needs; a model that loops is stopped here."""


def request_bodies(conversation: Conversation) -> list[Body]:
    """One body for each reply of the conversation, with all earlier replies as history; greedy sampling."""
    messages: list[Body] = []
    if conversation.system:
        messages.append({"role": "system", "content": conversation.system})
    bodies = []
    for number, exchange in enumerate(conversation.exchanges):
        for message in exchange_messages(exchange, conversation.thinking, number):
            if message["role"] == "assistant":
                bodies.append(make_body(conversation, list(messages)))
            messages.append(message)
    return bodies


def make_body(conversation: Conversation, messages: list[Body]) -> Body:
    body: Body = {"messages": messages, "temperature": 0.0, "max_tokens": MAX_REPLY_TOKENS}
    body["thinking"] = {"type": "enabled" if conversation.thinking else "disabled"}
    if conversation.thinking and conversation.maximum_effort:
        body["reasoning_effort"] = "max"
    if conversation.tools:
        body["tools"] = [{"type": "function", "function": tool} for tool in conversation.tools]
    match conversation.response_format:
        case "text":
            pass
        case "json_object":
            body["response_format"] = {"type": "json_object"}
        case schema:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    return body


def exchange_messages(exchange: Exchange, thinking: bool, number: int) -> list[Body]:
    """The exchange's messages, user's and tools' and assistant's, in order."""
    messages: list[Body] = [{"role": "user", "content": exchange.question}]
    if exchange.calls:
        ids = [f"call_{number}_{index}" for index in range(len(exchange.calls))]
        calls = [call_message(call_id, call) for call_id, call in zip(ids, exchange.calls, strict=True)]
        messages.append(assistant_message(exchange.reasoning, "", thinking) | {"tool_calls": calls})
        for call_id, result in zip(ids, exchange.results, strict=True):
            messages.append({"role": "tool", "tool_call_id": call_id, "content": result})
    reasoning = exchange.final_reasoning if exchange.calls else exchange.reasoning
    messages.append(assistant_message(reasoning, exchange.expected(thinking), thinking))
    return messages


def assistant_message(reasoning: str, content: str, thinking: bool) -> Body:
    message: Body = {"role": "assistant", "content": content}
    return message | {"reasoning_content": reasoning} if thinking else message


def call_message(call_id: str, call: ToolCall) -> Body:
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
