"""The shapes of chat fields that the recipe would refuse in words that name neither field nor value."""

import re
from typing import Any

from benthic.errors import RequestError
from benthic.text.fields import refuse

_NAME = re.compile(r"[a-zA-Z0-9_-]+")


def check_shapes(body: dict[str, Any]) -> None:
    """Check `tools` and the log-probability switches of a chat body.

    Raises:
        RequestError: a value has a wrong shape; `param` is its place, e.g. tools[0].function.name.
    """
    _check_tools(body.get("tools"))
    if body.get("top_logprobs") and not body.get("logprobs"):
        refuse("top_logprobs", body["top_logprobs"], "absent unless logprobs is true")


def check_list_of_tools(tools: Any) -> None:
    """What holds in every protocol: a list of objects.

    Raises:
        RequestError: it is something else.
    """
    if tools is not None and not isinstance(tools, list):
        refuse("tools", tools, "a list of tools")
    for position, tool in enumerate(tools or ()):
        if not isinstance(tool, dict):
            refuse(f"tools[{position}]", tool, "an object that describes a tool")


def _check_tools(tools: Any) -> None:
    check_list_of_tools(tools)
    names: list[str] = []
    for position, tool in enumerate(tools or ()):
        path = f"tools[{position}]"
        if tool.get("type") != "function":
            refuse(f"{path}.type", tool.get("type"), '"function"')
        function = tool.get("function")
        if not isinstance(function, dict):
            refuse(f"{path}.function", function, "an object with name, description and parameters")
        _check_function(function, f"{path}.function")
        if function["name"] in names:
            raise RequestError(
                f"{path}.function.name is {function['name']!r}, which another tool has too; names must differ",
                param=f"{path}.function.name",
            )
        names.append(function["name"])


def _check_function(function: dict[str, Any], path: str) -> None:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        refuse(f"{path}.name", name, "letters, digits, underscores and hyphens")
    _check_text(function, "description", path)
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        refuse(f"{path}.strict", strict, "true or false")
    _check_schema(function.get("parameters", {}), f"{path}.parameters")


def check_response_format(value: Any) -> None:
    """Check the shape of a `response_format` of one of OpenAI's types.

    Raises:
        RequestError: a member is missing or of a wrong type.
    """
    if value is not None and value["type"] == "json_schema":
        inner = value.get("json_schema")
        path = "response_format.json_schema"
        if not isinstance(inner, dict):
            refuse(path, inner, "an object with name and schema")
        _check_text(inner, "name", path)
        _check_text(inner, "description", path)
        if inner.get("strict") is not None and not isinstance(inner["strict"], bool):
            refuse(f"{path}.strict", inner["strict"], "true or false")
        if "schema" not in inner:
            refuse(f"{path}.schema", None, "a JSON schema")
        _check_schema(inner["schema"], f"{path}.schema")


def _check_schema(schema: Any, path: str) -> None:
    """Its inner rules are judged by the recipe; null means that there is none."""
    if schema is not None and not isinstance(schema, dict | bool):
        refuse(path, schema, "a JSON schema, which is an object")


def _check_text(owner: dict[str, Any], name: str, path: str) -> None:
    value = owner.get(name)
    if value is not None and not isinstance(value, str):
        refuse(f"{path}.{name}", value, "a string")
