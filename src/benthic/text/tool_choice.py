"""Tool choices that the recipe does not know, rewritten to those that it does.

`allowed_tools` becomes its mode over the allowed subset of the tools; Anthropic's `any` becomes auto plus a flag (the
caller then forces a call); an Anthropic tool of type "custom" is an ordinary tool.
"""

from typing import Any, NoReturn

from benthic.errors import RequestError
from benthic.text.fields import refuse
from benthic.text.protocol_fields import Protocol


def check_tool_choice(protocol: Protocol, body: dict[str, Any]) -> None:
    """A choice has a known form, and what it forces is offered.

    Raises:
        RequestError: `param` is tool_choice.
    """
    choice = body.get("tool_choice")
    if choice is None:
        return
    _check_form(protocol, choice)
    if is_forced({**body, "tools": [{}]}) and not body.get("tools"):
        _refuse_choice(choice, "no tools are offered; add tools, or choose none or auto")
    name = _chosen_name(choice)
    if name is None:
        return
    tools = body.get("tools") or []
    names = [_name(tool) for tool in tools]
    # Functions in a namespace have names that the recipe makes; it judges those.
    if name not in names and not any(tool.get("type") == "namespace" for tool in tools):
        _refuse_choice(choice, f"it must name one of {', '.join(repr(known) for known in names)}")


def is_forced(body: dict[str, Any]) -> bool:
    """Whether the reply must be a tool call."""
    choice = body.get("tool_choice")
    if not body.get("tools"):
        return False
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools")
        mode = choice.get("mode") or (allowed.get("mode") if isinstance(allowed, dict) else None)
        return choice.get("type") in ("function", "tool", "any") or mode == "required"
    return choice == "required"


def rewrite_tool_choice(protocol: Protocol, body: dict[str, Any]) -> bool:
    """Rewrite `tools` and `tool_choice` in place; return whether a call is forced in a way that the recipe misses.

    Raises:
        RequestError: an allowed tool is not among the tools, or the choice has no known form.
    """
    choice = body.get("tool_choice")
    if protocol == "messages":
        if isinstance(body.get("tools"), list):
            body["tools"] = [_without_custom_type(tool) for tool in body["tools"]]
        if isinstance(choice, dict) and choice.get("type") == "any":
            body["tool_choice"] = {"type": "auto"}
            return bool(body.get("tools"))
        return False
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        _keep_allowed(body, choice)
    return False


def _keep_allowed(body: dict[str, Any], choice: dict[str, Any]) -> None:
    inner = choice.get("allowed_tools", choice)
    mode, allowed = (inner.get("mode"), inner.get("tools")) if isinstance(inner, dict) else (None, None)
    if mode not in ("auto", "required") or not isinstance(allowed, list) or not allowed:
        refuse("tool_choice", choice, 'allowed_tools with mode "auto" or "required" and a list of tools')
    tools = body.get("tools")
    tools = tools if isinstance(tools, list) else []
    names = [_name(tool) for tool in allowed]
    unknown = [name for name in names if name not in [_name(tool) for tool in tools]]
    if unknown:
        raise RequestError(
            f"tool_choice allows the tool {unknown[0]!r}; it must be one of {[_name(tool) for tool in tools]}",
            param="tool_choice",
        )
    body["tools"] = [tool for tool in tools if _name(tool) in names]
    body["tool_choice"] = mode


def _check_form(protocol: Protocol, choice: Any) -> None:
    if protocol == "messages":
        if not isinstance(choice, dict) or choice.get("type") not in ("auto", "any", "none", "tool"):
            refuse("tool_choice", choice, "an object with type auto, any, none or tool")
        if choice["type"] == "tool" and not isinstance(choice.get("name"), str):
            refuse("tool_choice.name", choice.get("name"), "the name of a tool")
    elif isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            refuse("tool_choice", choice, "none, auto, required or an object that names a function")
    elif not isinstance(choice, dict) or not isinstance(choice.get("type"), str):
        refuse("tool_choice", choice, "none, auto, required or an object that names a function")
    elif protocol == "chat":
        if choice["type"] not in ("function", "allowed_tools"):
            refuse("tool_choice.type", choice["type"], '"function" or "allowed_tools"')
        function = choice.get("function")
        if choice["type"] == "function" and not (isinstance(function, dict) and isinstance(function.get("name"), str)):
            refuse("tool_choice.function", choice.get("function"), 'an object such as {"name": "get_weather"}')


def _chosen_name(choice: Any) -> str | None:
    """The function that a choice names."""
    if not isinstance(choice, dict) or choice.get("type") not in ("function", "tool"):
        return None
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    return name if isinstance(name, str) else None


def _refuse_choice(choice: Any, problem: str) -> NoReturn:
    shown = choice if isinstance(choice, str) else _chosen_name(choice) or choice.get("type")
    raise RequestError(f"tool_choice is {shown!r}, but {problem}", param="tool_choice")


def _name(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def _without_custom_type(tool: Any) -> Any:
    if isinstance(tool, dict) and tool.get("type") == "custom":
        return {key: value for key, value in tool.items() if key != "type"}
    return tool
