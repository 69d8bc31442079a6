"""What only Responses requests say: settings that every reply repeats, hosted tools, and items of other servers.

deepseek-recipe leaves out, without a word, tools and items that it does not know; the model would answer as if they had
not been sent. So they are refused where they stand. `web_search` alone is left out: coding agents declare it with every
request and get along without, and a reply's `tools` shows that it is not there.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from benthic.errors import RequestError
from benthic.text.fields import refuse

_TOOLS = frozenset({"function", "custom", "namespace", "tool_search"})
_LEFT_OUT = "web_search"
_ITEMS = frozenset(
    {"message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"}
    | {"tool_search_call", "tool_search_output", "web_search_call"}
)
_LOGPROBS = "message.output_text.logprobs"
_REASONING = "reasoning.encrypted_content"
_SEAL = "benthic1."


def check_hosted_tools(tools: Any) -> None:
    """Refuse tools that some server would have to run: this one runs none.

    Raises:
        RequestError: `param` is the place of its type.
    """
    for position, tool in enumerate(tools if isinstance(tools, list) else ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and kind not in _TOOLS and not kind.startswith(_LEFT_OUT):
            allowed = '"function": this server runs no tools; offer a function and carry out its calls yourself'
            refuse(f"tools[{position}].type", kind, allowed)


def rewrite_item(item: dict[str, Any], path: str) -> dict[str, Any]:
    """An input item as the recipe can read it: reasoning that came back sealed is opened.

    Raises:
        RequestError: its type is unknown, or it points to something that would have to be stored here.
    """
    kind = item.get("type")
    if kind == "item_reference":
        raise RequestError(
            f"{path} is an item_reference; replies are not stored, so send the item itself", param=f"{path}.type"
        )
    if isinstance(kind, str) and kind not in _ITEMS:
        refuse(f"{path}.type", kind, f"one of {', '.join(sorted(_ITEMS))}: the model reads nothing else")
    if kind == "reasoning" and not item.get("content"):
        text = unseal(item.get("encrypted_content"))
        if text is not None:
            return {**item, "content": [{"type": "reasoning_text", "text": text}]}
    return item


def take_includes(body: dict[str, Any]) -> None:
    """Asking for log-probabilities by `include` is asking for those of the chosen tokens.

    Raises:
        RequestError: `include` is no list of strings.
    """
    include = body.get("include")
    if include is None:
        return
    if not isinstance(include, list) or not all(isinstance(item, str) for item in include):
        refuse("include", include, "a list of strings")
    if _LOGPROBS in include and body.get("top_logprobs") is None:
        body["top_logprobs"] = 0


def wants_sealed(body: Mapping[str, Any]) -> bool:
    """Whether reasoning shall come in a form that the client can send back without reading it."""
    include = body.get("include")
    return isinstance(include, list) and _REASONING in include


def reported_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """What a reply says of its request, as the request said it; the recipe forgets or rewrites these."""
    parallel = body.get("parallel_tool_calls")
    passed = ("prompt_cache_key", "prompt_cache_retention", "safety_identifier", "max_tool_calls", "user")
    return {
        **{name: body.get(name) for name in passed},
        "metadata": body.get("metadata") or {},
        "parallel_tool_calls": True if parallel is None else parallel,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": _offered(body.get("tools") or ()),
        "store": False,
        "truncation": "disabled",
    }


def seal(text: str) -> str:
    """Reasoning as one opaque word, for clients that keep it only in this form. It hides nothing."""
    return _SEAL + base64.urlsafe_b64encode(text.encode("utf-8")).decode("ascii")


def unseal(word: Any) -> str | None:
    """The reasoning in a word that `seal` made; None for anything else."""
    if not isinstance(word, str) or not word.startswith(_SEAL):
        return None
    try:
        return base64.b64decode(word.removeprefix(_SEAL), altchars=b"-_", validate=True).decode("utf-8")
    except ValueError:  # no base64, no UTF-8, or not even ASCII
        return None


def _offered(tools: Sequence[Any]) -> list[Any]:
    """OpenAI's clients expect the optional fields of a function to be there."""
    return [
        {"description": None, "parameters": None, "strict": None, **tool} if tool.get("type") == "function" else tool
        for tool in tools
        if isinstance(tool, dict) and not str(tool.get("type")).startswith(_LEFT_OUT)
    ]
