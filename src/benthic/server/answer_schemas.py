"""Schemas of what comes back, as /openapi.json shows them: what clients may rely on, and that there may be more."""

from typing import Any

from benthic.server.schema_kinds import Schema

_STRING: Schema = {"type": "string"}
_OPTIONAL: Schema = {"type": ["string", "null"]}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_LOGPROBS: Schema = {"type": ["object", "null"]}


def answer(**properties: Schema) -> Schema:
    """An object that has all of these members."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def list_of(items: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": items}


_REFUSAL = answer(message=_STRING, type=_STRING, param=_OPTIONAL, code=_OPTIONAL)
ERROR = answer(error=_REFUSAL)
MESSAGES_ERROR = answer(type={"const": "error"}, error=_REFUSAL, request_id=_STRING)

_HITS = {"prompt_cache_hit_tokens": _COUNT, "prompt_cache_miss_tokens": _COUNT}
_USAGE = answer(prompt_tokens=_COUNT, completion_tokens=_COUNT, total_tokens=_COUNT, **_HITS)
_NUMBERED: dict[str, Schema] = {"index": _COUNT, "logprobs": _LOGPROBS}
_TURN: Schema = {"type": "object", "properties": {"role": {"const": "assistant"}}, "required": ["role"]}


def _reply(kind: str, choice: Schema) -> Schema:
    return answer(
        id=_STRING,
        object={"const": kind},
        created=_COUNT,
        model=_STRING,
        choices=list_of(choice),
        usage=_USAGE,
    )


CHAT = _reply(
    "chat.completion",
    answer(**_NUMBERED, message=_TURN, finish_reason={"enum": ["stop", "length", "tool_calls"]}),
)
COMPLETION = _reply("text_completion", answer(**_NUMBERED, text=_STRING, finish_reason={"enum": ["stop", "length"]}))
RESPONSE = answer(
    id=_STRING,
    object={"const": "response"},
    created_at={"type": "number"},
    status={"enum": ["completed", "incomplete"]},
    model=_STRING,
    output=list_of(answer(type=_STRING)),
    usage=answer(input_tokens=_COUNT, output_tokens=_COUNT, total_tokens=_COUNT, **_HITS),
)
MESSAGE = answer(
    id=_STRING,
    type={"const": "message"},
    role={"const": "assistant"},
    model=_STRING,
    content=list_of(answer(type=_STRING)),
    stop_reason={"enum": ["end_turn", "max_tokens", "stop_sequence", "tool_use"]},
    usage=answer(input_tokens=_COUNT, output_tokens=_COUNT, cache_read_input_tokens=_COUNT, **_HITS),
)
COUNT_INPUT = answer(object={"const": "response.input_tokens"}, input_tokens=_COUNT)
COUNT_MESSAGES = answer(input_tokens=_COUNT)
TOKENIZED: Schema = answer(tokens=list_of(_COUNT), count=_COUNT, max_model_len=_COUNT)
DETOKENIZED = answer(prompt=_STRING)
TOKENIZER = answer(bos_token=_STRING, eos_token=_STRING, vocab_size=_COUNT, model_max_length=_COUNT)
MODEL = answer(id=_STRING, object={"const": "model"}, created=_COUNT, owned_by=_STRING, max_model_len=_COUNT)
MODELS = answer(object={"const": "list"}, data=list_of(MODEL))
HEALTH = answer(status=_STRING)
LOADS = answer(timestamp={"type": "number"}, loads=list_of({"type": "object"}))
SUCCESS = answer(success={"const": True})


def as_json(schema: Schema) -> dict[str, Any]:
    """The content of a response that is JSON."""
    return {"application/json": {"schema": schema}}


def as_text(media_type: str) -> dict[str, Any]:
    """The content of a response that is text."""
    return {media_type: {"schema": _STRING}}
