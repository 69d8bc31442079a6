"""What /openapi.json says of a route: its body with types, ranges and an example, its answers, its refusals.

The endpoints read and judge their fields themselves, with messages that name field, value and what is allowed; this is
for tools that read the document: generators of clients, and of requests that try to break a server.
"""

from collections.abc import Mapping
from typing import Any

from benthic.server.answer_schemas import (
    CHAT,
    COMPLETION,
    COUNT_INPUT,
    COUNT_MESSAGES,
    DETOKENIZED,
    ERROR,
    MESSAGE,
    MESSAGES_ERROR,
    RESPONSE,
    SUCCESS,
    TOKENIZED,
    as_json,
    as_text,
)
from benthic.server.field_schemas import body_schema, token_id
from benthic.server.schema_kinds import Schema, flag, needed, text

_QUESTION = "What is 347 + 285?"
_ASKED = [{"role": "user", "content": _QUESTION}]
_CONVERSATIONS = {
    "/v1/chat/completions": ("chat", CHAT),
    "/v1/completions": ("completions", COMPLETION),
    "/v1/responses": ("responses", RESPONSE),
    "/v1/messages": ("messages", MESSAGE),
}
_COUNTS = {
    "/v1/responses/input_tokens": ("responses", COUNT_INPUT),
    "/v1/messages/count_tokens": ("messages", COUNT_MESSAGES),
}
_EXAMPLES: dict[str, dict[str, Any]] = {
    "chat": {"messages": _ASKED, "max_tokens": 32, "stream": False},
    "completions": {"prompt": _QUESTION, "max_tokens": 32},
    "responses": {"input": _QUESTION, "stream": False},
    "messages": {"messages": _ASKED, "max_tokens": 64, "stream": False},
}


def describe(path: str, *, name: str, vocab_size: int) -> dict[str, Any]:
    """A route for clients that takes a body.

    Args:
        path: of the route.
        name: the served model's, for examples.
        vocab_size: token ids are below it.
    """
    if path == "/tokenize":
        return _described(_to_tokenize(vocab_size), {"prompt": _QUESTION}, TOKENIZED)
    if path == "/detokenize":
        ids: Schema = {"type": "array", "items": token_id(vocab_size)}
        return _described(_object({"tokens": ids, "model": text()}, ["tokens"]), {"tokens": [0]}, DETOKENIZED)
    endpoint, result = (_CONVERSATIONS | _COUNTS)[path]
    schema, example = body_schema(endpoint, vocab_size), {"model": name, **_EXAMPLES[endpoint]}
    refusal = MESSAGES_ERROR if endpoint == "messages" else ERROR
    content = as_json(result) | (as_text("text/event-stream") if path in _CONVERSATIONS else {})
    return _described(schema, example, content=content, refusal=refusal)


def describe_control(properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> dict[str, Any]:
    """A control route, whose body may be missing where it needs nothing."""
    described = _described(_object(properties, required), None, SUCCESS)
    described["requestBody"]["required"] = bool(required)
    return described


def describe_get(schema: Schema | None = None, *, media_type: str = "text/plain") -> dict[int | str, dict[str, Any]]:
    """The answers of a route without a body: JSON of a schema, or text of a media type."""
    content = as_text(media_type) if schema is None else as_json(schema)
    return {status: told for status, told in _responses(content, ERROR).items()}


def _described(
    schema: Schema,
    example: Mapping[str, Any] | None,
    result: Schema | None = None,
    *,
    content: Mapping[str, Any] | None = None,
    refusal: Schema = ERROR,
) -> dict[str, Any]:
    shown = schema if example is None else {**schema, "example": dict(example)}
    good = content if result is None else as_json(result)
    return {"requestBody": {"required": True, "content": as_json(shown)}, "responses": _responses(good or {}, refusal)}


def _responses(content: Mapping[str, Any], refusal: Schema) -> dict[str, Any]:
    """docs/http.md lists the statuses one by one."""
    return {
        "200": {"description": "The answer", "content": dict(content)},
        "4XX": {
            "description": "A refusal: the message says what was wrong and what is allowed",
            "content": as_json(refusal),
        },
        "5XX": {"description": "Not now, or a fault of the server's", "content": as_json(refusal)},
    }


def _object(properties: Mapping[str, Schema], required: tuple[str, ...] | list[str]) -> Schema:
    names = [name for name in properties if name in required]
    shown = {name: needed(schema) if name in required else schema for name, schema in properties.items()}
    return {"type": "object", "properties": shown} | ({"required": names} if names else {})


def _to_tokenize(vocab_size: int) -> Schema:
    """A text, or a chat."""
    spelled = {"return_token_strs": flag("adds their spellings")}
    told = {"prompt": text(), "model": text(), "add_special_tokens": flag("BOS in front"), **spelled}
    chat = body_schema("chat", vocab_size)
    plain = _object(told, ["prompt"])
    plain["properties"]["messages"] = False
    return {"anyOf": [plain, {**chat, "properties": {**chat["properties"], **spelled}}]}
