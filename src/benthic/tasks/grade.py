"""Whether a reply is right. Every question has one right answer, and the answer's form follows from the question."""

import json
import re
from dataclasses import dataclass

from benthic.tasks.conversation import Conversation, Exchange, Json
from benthic.tasks.requests import Body

NUMBER = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class ReplyCall:
    """A tool call as the server reports it; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the server made of one request."""

    content: str
    reasoning: str = ""
    calls: tuple[ReplyCall, ...] = ()
    finish_reason: str = "stop"

    @classmethod
    def from_chat_completion(cls, response: Body) -> "Reply":
        """Reads the first choice of a `/v1/chat/completions` response."""
        choice = response["choices"][0]
        message = choice["message"]
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        return cls(
            content=message.get("content") or "",
            reasoning=message.get("reasoning_content") or "",
            calls=tuple(ReplyCall(function["name"], function["arguments"]) for function in functions),
            finish_reason=choice["finish_reason"],
        )


def is_right(exchange: Exchange, thinking: bool, reply: Reply) -> bool:
    """Whether the content of the last reply answers the exchange; a reply with a call in it does not."""
    if reply.calls or reply.finish_reason != "stop":
        return False
    content = reply.content.strip()
    match exchange.task:
        case "counting":
            numbers = NUMBER.findall(content)
            return bool(numbers) and numbers[-1] == exchange.answer
        case "extraction":
            return same_json(content, exchange.answer)
        case _:
            return content == exchange.expected(thinking).strip()


def same_json(text: str, expected: str) -> bool:
    """Equal values of equal types in any key order; as the expected object obeys its schema, so does an equal one."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return json.dumps(value, sort_keys=True) == json.dumps(json.loads(expected), sort_keys=True)


def is_well_formed(conversation: Conversation, reply: Reply) -> bool:
    """Whether the reply makes calls, each to an offered tool with the arguments that its schema demands."""
    tools = {tool["name"]: tool["parameters"] for tool in conversation.tools}
    return (
        bool(reply.calls)
        and reply.finish_reason == "tool_calls"
        and all(call.name in tools and obeys(call.arguments, tools[call.name]) for call in reply.calls)
    )


def obeys(arguments: str, schema: Json) -> bool:
    """Whether JSON text is an object with the schema's required keys, no unknown ones, and values of its types."""
    try:
        values = json.loads(arguments)
    except ValueError:
        return False
    if not isinstance(values, dict):
        return False
    properties = schema["properties"]
    return set(schema["required"]) <= set(values) <= set(properties) and all(
        has_type(value, properties[key]) for key, value in values.items()
    )


def has_type(value: object, schema: Json) -> bool:
    types = {"string": str, "integer": int, "boolean": bool}
    is_of_type = type(value) is types[schema["type"]]
    return is_of_type and value in schema.get("enum", [value])


def calls_are_right(exchange: Exchange, reply: Reply) -> bool:
    """Whether the reply makes the expected calls, in order, with equal arguments."""
    if len(reply.calls) != len(exchange.calls):
        return False
    return all(
        call.name == expected.name and same_json(call.arguments, json.dumps(expected.arguments))
        for call, expected in zip(reply.calls, exchange.calls, strict=True)
    )
