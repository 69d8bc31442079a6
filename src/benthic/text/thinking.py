"""One decision on thinking for a request, from all the spellings that clients use.

- `thinking`: {"type": "enabled" | "adaptive" | "disabled"} or a boolean;
- `enable_thinking`, `chat_template_kwargs.thinking`, `chat_template_kwargs.enable_thinking`, `reasoning.enabled`;
- an effort (`reasoning_effort`, `reasoning.effort`, `output_config.effort`, `chat_template_kwargs.reasoning_effort`):
  "none" is off, any other is on.

A budget of reasoning tokens is `thinking_budget` or `thinking.budget_tokens`; it means nothing where thinking is off.

Switches that disagree are an error, and so is effort "none" beside a switch that is on. Another effort beside one that
is off means nothing: it is how hard to think. Where nothing is said the checkpoint's default holds.
Renderer and parser both take the mode from here, so a reply is always read as it was asked for.
"""

from typing import Any, NamedTuple

from benthic.errors import RequestError
from benthic.text.fields import Body, read_boolean, read_choice, read_integer, read_object, refuse
from benthic.text.protocol_fields import Protocol

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra")


MAX_BUDGET = 2**31 - 1
_TEMPLATE_KEYS = ("thinking", "enable_thinking", "reasoning_effort")


class Mode(NamedTuple):
    """`is_explicit` says that the request itself asked for this mode; `effort` and `budget`, in tokens, are None where
    none was named."""

    thinking: bool
    effort: str | None
    is_explicit: bool
    budget: int | None = None


def take_mode(body: dict[str, Any], protocol: Protocol, default_thinking: bool) -> Mode:
    """Remove every spelling from the body and decide.

    Raises:
        RequestError: a spelling has a wrong value, or two switches disagree.
    """
    _check_template(body)
    budget = _take_budget(body)
    switch = _take_switch(body)
    effort = _take_effort(body, protocol)
    if switch and effort == "none":
        message = (
            "the thinking switches disagree: thinking is on, and the effort is 'none', which is off; set one of them"
        )
        raise RequestError(message, param="reasoning_effort")
    if switch is not None:
        return Mode(switch, None if effort == "none" or not switch else effort, True, budget)
    if effort is not None:
        return Mode(effort != "none", None if effort == "none" else effort, True, budget)
    return Mode(default_thinking, None, False, budget)


def write_mode(body: dict[str, Any], protocol: Protocol, mode: Mode) -> None:
    """Put the mode into the body in the one spelling that the recipe reads for this protocol."""
    effort = mode.effort if mode.thinking else "none"
    if protocol == "responses":  # no switch of its own: with no effort the recipe takes the default it is given
        others = {name: value for name, value in (body.get("reasoning") or {}).items() if name != "effort"}
        body["reasoning"] = others | ({} if effort is None else {"effort": effort})
        return
    body.pop("output_config", None)
    body["thinking"] = {"type": "enabled" if mode.thinking else "disabled"}
    if mode.effort is not None and protocol == "chat":
        body["reasoning_effort"] = mode.effort
    if mode.effort is not None and protocol == "messages":
        body["output_config"] = {"effort": mode.effort}


def _check_template(body: Body) -> None:
    """No template is filled in here, so what would go into one, thinking apart, can only be refused."""
    for key, value in (read_object(body, "chat_template_kwargs") or {}).items():
        if key not in _TEMPLATE_KEYS and value is not None:
            allowed = f"absent: this server reads {', '.join(_TEMPLATE_KEYS)} of chat_template_kwargs and no other key"
            refuse(f"chat_template_kwargs.{key}", value, allowed)


def _take_budget(body: dict[str, Any]) -> int | None:
    thinking = body.get("thinking")
    inner = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    said = {
        "thinking_budget": read_integer(body, "thinking_budget", 0, MAX_BUDGET),
        "thinking.budget_tokens": read_integer(
            {"thinking.budget_tokens": inner}, "thinking.budget_tokens", 0, MAX_BUDGET
        ),
    }
    body.pop("thinking_budget", None)
    explicit = {name: value for name, value in said.items() if value is not None}
    if len(set(explicit.values())) > 1:
        spelled = ", ".join(f"{name} is {value}" for name, value in explicit.items())
        raise RequestError(f"the thinking budgets disagree: {spelled}; set one of them", param="thinking_budget")
    return next(iter(explicit.values()), None)


def _take_switch(body: dict[str, Any]) -> bool | None:
    template = read_object(body, "chat_template_kwargs") or {}
    reasoning = read_object(body, "reasoning") or {}
    said = {
        "thinking": _thinking_type(body.pop("thinking", None), "thinking"),
        "enable_thinking": read_boolean(body, "enable_thinking"),
        "chat_template_kwargs.thinking": _inner_boolean(template, "chat_template_kwargs", "thinking"),
        "chat_template_kwargs.enable_thinking": _inner_boolean(template, "chat_template_kwargs", "enable_thinking"),
        "reasoning.enabled": _inner_boolean(reasoning, "reasoning", "enabled"),
    }
    body.pop("enable_thinking", None)
    explicit = {name: value for name, value in said.items() if value is not None}
    if len(set(explicit.values())) > 1:
        spelled = ", ".join(f"{name} says {'on' if on else 'off'}" for name, on in explicit.items())
        raise RequestError(f"the thinking switches disagree: {spelled}; set one of them", param=next(iter(explicit)))
    return next(iter(explicit.values()), None)


def _take_effort(body: dict[str, Any], protocol: Protocol) -> str | None:
    places = {
        "reasoning_effort": body,
        "reasoning.effort": read_object(body, "reasoning"),
        "output_config.effort": read_object(body, "output_config"),
        "chat_template_kwargs.reasoning_effort": read_object(body, "chat_template_kwargs"),
    }
    said = {}
    for name, place in places.items():
        effort = read_choice({name: (place or {}).get(name.rpartition(".")[2])}, name, EFFORTS)
        if effort is not None:
            said[name] = effort
    if len(set(said.values())) > 1:
        spelled = ", ".join(f"{name} is {effort!r}" for name, effort in said.items())
        raise RequestError(f"the efforts disagree: {spelled}; set one of them", param=next(iter(said)))
    body.pop("reasoning_effort", None)
    body.pop("chat_template_kwargs", None)
    if protocol != "responses":  # there the recipe reads the rest of it
        body.pop("reasoning", None)
    if protocol != "messages":
        body.pop("output_config", None)
    return next(iter(said.values()), None)


def _thinking_type(value: Any, name: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if not isinstance(value, dict) or value.get("type") not in ("enabled", "adaptive", "disabled"):
        refuse(name, value, 'an object with type "enabled", "adaptive" or "disabled", or a boolean')
    return bool(value["type"] != "disabled")


def _inner_boolean(place: Body, outer: str, name: str) -> bool | None:
    path = f"{outer}.{name}"
    return read_boolean({path: place.get(name)}, path)
