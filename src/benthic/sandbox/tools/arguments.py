"""A model's tool call, read with care: the answer is arguments, or a sentence that the model can act on."""

import json
from dataclasses import dataclass
from typing import Any

from benthic.sandbox.tools.definitions import SCHEMAS

_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "number": (int, float), "integer": (int,), "boolean": (bool,)}


class BadCall(Exception):
    """A call that no tool can take; the message is for the model."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call with arguments that fit the tool's schema."""

    id: str
    name: str
    arguments: dict[str, Any]


def call_id(call: Any) -> str:
    """The id to answer a call under, whatever else is wrong with it."""
    found = call.get("id") if isinstance(call, dict) else None
    return found if isinstance(found, str) else ""


def read_call(call: Any, names: tuple[str, ...]) -> ToolCall:
    """A call as a chat completion carries it, checked.

    Args:
        call: {"id": ..., "function": {"name": ..., "arguments": JSON text}}.
        names: the tools that are offered.

    Raises:
        BadCall: it cannot be run as it is.
    """
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise BadCall("the call names no function")
    name = function.get("name")
    if name not in names:
        raise BadCall(f"there is no tool named {name!r}; the tools are {', '.join(names)}")
    arguments = _read_arguments(name, function.get("arguments") or "{}")
    return ToolCall(call_id(call), name, arguments)


def _read_arguments(name: str, text: Any) -> dict[str, Any]:
    try:
        arguments = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise BadCall(f"the arguments of {name} are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise BadCall(f"the arguments of {name} must be a JSON object, and are {type(arguments).__name__}")
    schema = SCHEMAS[name]["function"]["parameters"]
    properties = schema["properties"]
    for key, value in arguments.items():
        if key not in properties:
            raise BadCall(f"{name} takes no argument {key!r}; it takes {', '.join(properties)}")
        _check_type(name, key, value, properties[key]["type"])
    missing = [key for key in schema["required"] if key not in arguments]
    if missing:
        raise BadCall(f"{name} needs the argument {missing[0]!r}")
    return arguments


def _check_type(name: str, key: str, value: Any, wanted: str) -> None:
    is_right = isinstance(value, _TYPES[wanted]) and (wanted == "boolean" or not isinstance(value, bool))
    if not is_right:
        raise BadCall(f"{name}: {key!r} must be of type {wanted}, and is {type(value).__name__}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise BadCall(f"{name}: {key!r} has half a surrogate pair, which no file or command can hold") from None
