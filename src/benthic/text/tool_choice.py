"""Tool choices that the recipe does not know, rewritten to those that it does.

`allowed_tools` becomes its mode over the allowed subset of the tools; Anthropic's `any` becomes auto plus a flag (the
caller then forces a call); an Anthropic tool of type "custom" is an ordinary tool. A call that is forced after thinking
is auto to the recipe, as `strict` tools are ordinary ones: both are the grammar's to see to.
"""

from typing import Any, NamedTuple, NoReturn

from benthic.errors import RequestError
from benthic.text.fields import refuse
from benthic.text.protocol_fields import Protocol


class ToolWishes(NamedTuple):
    """How a reply may call tools, beside what the recipe is told."""

    is_forced: bool = False
    """It must be a call."""
    begins_call: bool = False
    """The prompt begins the call, and the recipe has not been told so (Anthropic's `any`)."""
    is_parallel: bool = True
    """It may hold several calls."""
    strict: frozenset[str] = frozenset()
    """Tools whose arguments must keep to their schema."""


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


def take_tool_wishes(protocol: Protocol, body: dict[str, Any], *, thinking: bool) -> ToolWishes:
    """Rewrite `tools` and `tool_choice` in place to what the recipe understands; return what it then misses.

    Args:
        thinking: whether the reply begins with thinking, after which alone a call can be forced.

    Raises:
        RequestError: an allowed tool is not among the tools, or the choice has no known form.
    """
    choice = body.get("tool_choice")
    forced = is_forced(body)
    if protocol == "messages" and isinstance(body.get("tools"), list):
        body["tools"] = [_without_custom_type(tool) for tool in body["tools"]]
    if protocol != "messages" and isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        _keep_allowed(body, choice)
    is_any = protocol == "messages" and forced and isinstance(choice, dict) and choice["type"] == "any"
    if forced and (thinking or is_any):
        name = _chosen_name(choice)
        if name is not None:
            body["tools"] = _only(body["tools"], name)
        body["tool_choice"] = {"type": "auto"} if protocol == "messages" else "auto"
    return ToolWishes(
        is_forced=forced,
        begins_call=is_any and not thinking,
        is_parallel=not _is_single(body, choice),
        strict=frozenset(_take_strict(body)),
    )


def _only(tools: list[Any], name: str) -> list[Any]:
    """The tool of a name; where the recipe makes names (of a namespace), all of them."""
    return [tool for tool in tools if _name(tool) == name] or tools


def _is_single(body: dict[str, Any], choice: Any) -> bool:
    asked = choice.get("disable_parallel_tool_use") if isinstance(choice, dict) else None
    if asked is not None and not isinstance(asked, bool):
        refuse("tool_choice.disable_parallel_tool_use", asked, "true or false")
    return bool(asked) or body.get("parallel_tool_calls") is False


def _take_strict(body: dict[str, Any]) -> list[str]:
    """The names of strict tools, which are ordinary ones from now on."""
    tools = body.get("tools")
    if not isinstance(tools, list):
        return []
    names: list[str] = []
    body["tools"] = [_without_strict(tool, names, "", f"tools[{at}]") for at, tool in enumerate(tools)]
    return names


def _without_strict(tool: Any, names: list[str], prefix: str, path: str) -> Any:
    if not isinstance(tool, dict):
        return tool
    inner = tool.get("tools")
    if tool.get("type") == "namespace" and isinstance(inner, list):
        space = f"{tool.get('name')}__"
        bare = [_without_strict(item, names, space, f"{path}.tools[{at}]") for at, item in enumerate(inner)]
        return {**tool, "tools": bare}
    function = tool.get("function")
    holder: dict[str, Any] = function if isinstance(function, dict) else tool
    strict = holder.get("strict")
    if strict is not None and not isinstance(strict, bool):
        refuse(f"{path}{'' if holder is tool else '.function'}.strict", strict, "true or false")
    if strict:
        names.append(f"{prefix}{_name(tool)}")
    ordinary = {key: value for key, value in holder.items() if key != "strict"}
    return ordinary if holder is tool else {**tool, "function": ordinary}


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
