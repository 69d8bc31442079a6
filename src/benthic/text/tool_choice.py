"""Tool choices that the recipe does not know, rewritten to those that it does.

`allowed_tools` becomes its mode over the allowed subset of the tools; Anthropic's `any` becomes auto plus a flag (the
caller then forces a call); an Anthropic tool of type "custom" is an ordinary tool.
"""

from typing import Any

from benthic.errors import RequestError
from benthic.text.fields import refuse
from benthic.text.protocol_fields import Protocol


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


def _name(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else tool.get("name")


def _without_custom_type(tool: Any) -> Any:
    if isinstance(tool, dict) and tool.get("type") == "custom":
        return {key: value for key, value in tool.items() if key != "type"}
    return tool
