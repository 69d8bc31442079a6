"""deepseek-recipe's refusals in the words of a request, without the type names of its implementation.

A fallback only: what clients often get wrong is checked before (`shapes.py`, `turns.py`, `content.py`).
"""

import json
import re
from typing import Any

from benthic.errors import BadSchema, RequestError
from benthic.text.protocol_fields import Protocol

_REWORDINGS = (
    (r"missing field `(\w+)`", r"the field '\1' is missing"),
    (r"field `(\w+)`: ", r"the field '\1': "),
    (r"data did not match any variant of untagged enum \w+", "a value has none of the forms that are allowed"),
    (r"unknown variant `([^`]*)`, expected one of (.*)", r"a value is '\1'; it must be one of \2"),
    (r"unknown variant `([^`]*)`, expected (.*)", r"a value is '\1'; it must be \2"),
    (r"invalid (?:type|value): (.*), expected (.*)", r"a value is \1; it must be \2"),
    (r"a value is (?:integer|floating point|string|boolean) ", "a value is "),
    (r"expected one of (.*)", r"it must be one of \1"),
    (r"(?:internally |adjacently |untagged )?(?:tagged )?enum \w+", "an object with a known type"),
    (r"(?:tuple |unit )?struct \w+", "an object"),
    (r"variant identifier", "a string"),
    (r"\ba sequence\b", "a list"),
    (r"\bis sequence\b", "is a list"),
    (r"\b(?:a )?map\b", "an object"),
    (r"\b(?:unit|Option) value\b", "null"),
    (r"\b[iu](?:8|16|32|64|128|size)\b", "an integer"),
    (r"\bf(?:32|64)\b", "a number"),
    (r" at line \d+ column \d+", ""),
    (r"`", "'"),
)
_OWN_WORDS = re.compile(r"Invalid '|Messages with role|Prompt must contain|Unsupported")
_SCHEMA = re.compile(r"Invalid (?:schema for function '(?P<function>[^']*)'|json schema): (?P<problem>.*)", re.DOTALL)
_FORMAT_PLACE: dict[Protocol, str] = {
    "chat": "response_format.json_schema.schema",
    "responses": "text.format.schema",
    "messages": "output_config.format.schema",
}


def to_refusal(protocol: Protocol, body: dict[str, Any], message: str, field: str | None = None) -> RequestError:
    """The error for a message of the recipe about this body.

    `param` is what the message names, or the `field` of the body that the message is known to speak of.
    """
    schema = _SCHEMA.match(message)
    if schema is not None:
        path = _FORMAT_PLACE[protocol]
        if schema["function"] is not None:
            path = parameters_place(body.get("tools"), schema["function"])
        return BadSchema(f"{path} must be a JSON schema: {schema['problem'].replace('`', chr(39))}", param=path)
    if _OWN_WORDS.match(message):
        return RequestError(message, param=_param(message))
    text = message.removeprefix("invalid request body: ")
    for pattern, replacement in _REWORDINGS:
        text = re.sub(pattern, replacement, text)
    param = _param(message)
    if field is None or (param is not None and re.split(r"[.\[]", param)[0] == field):
        return RequestError(f"the body is no {protocol} request: {text}", param=param)
    return RequestError(f"the body is no {protocol} request: in {field}, {text}", param=field)


def message_of(body: str) -> str:
    """The message inside the recipe's error object."""
    return str(json.loads(body)["error"]["message"])


def parameters_place(tools: Any, name: str) -> str:
    """Where the parameters of a tool stand in a body."""
    for position, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict):
            function = tool.get("function")
            if isinstance(function, dict) and function.get("name") == name:
                return f"tools[{position}].function.parameters"
            if tool.get("name") == name:
                return f"tools[{position}].{'input_schema' if 'input_schema' in tool else 'parameters'}"
    return "tools"


def _param(message: str) -> str | None:
    """The field a message speaks of: 'tools[0].function.name', `messages`, or Invalid NAME value."""
    if message.startswith("Messages with role"):
        return "messages"
    if message.startswith("Prompt must contain"):
        return "response_format"
    found = re.search(r"Invalid '([\w\[\].]+)'|field `(\w+)`|Invalid (\w+) (?:and \w+ )?value", message)
    return next((group for group in found.groups() if group), None) if found else None
