"""Fields in the wrong place or of the wrong type that no reader would notice.

A field that means something at one endpoint and nothing at another is refused at the other, with the reason: to ignore
it would give a reply that is not the one asked for. Fields that change no reply anywhere are only checked for their
type. Names that no endpoint knows are another matter: they are counted, or refused under `is_strict`.
"""

from typing import Any

from benthic.text.fields import Body, refuse
from benthic.text.protocol_fields import KNOWN_FIELDS, NEUTRAL_VALUES, is_neutral

_PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "completions": "/v1/completions",
}

_THINKING = frozenset(
    ("thinking", "enable_thinking", "thinking_budget", "reasoning", "reasoning_effort", "output_config")
    + ("chat_template_kwargs",)
)
"""Read by every conversation, whatever its protocol."""

_COMPLETION_FIELDS = frozenset(
    ("prompt", "suffix", "echo", "best_of", "n", "max_tokens", "logprobs", "stop", "stream", "stream_options")
    + ("include_stop_str_in_output", "add_special_tokens", "response_format", "max_completion_tokens")
)
"""Of plain completions, beside what all endpoints have; the last two have refusals of their own there."""

_PASSIVE: dict[str, tuple[type | tuple[type, ...], str]] = {
    "user": (str, "a string"),
    "metadata": (dict, "an object"),
    "store": (bool, "true or false"),
    "service_tier": (str, "a string"),
    "prompt_cache_key": (str, "a string"),
    "safety_identifier": (str, "a string"),
    "verbosity": (str, "a string"),
    "cache_control": (dict, "an object"),
    "prompt_cache_retention": (str, "a string"),
    "prompt_cache_options": (dict, "an object"),
    "context_management": ((dict, list), "an object or a list"),
    "inference_geo": (str, "a string"),
    "speed": (str, "a string"),
}
"""What changes no reply: type, and how a refusal names it."""

_ASKS_NOTHING: dict[str, tuple[Any, ...]] = {
    **NEUTRAL_VALUES,
    "n": (1,),
    "logprobs": (False,),
    "tools": ([],),
    "tool_choice": ("none",),
    "stream_options": ({},),
    "stop": ([],),
    "stop_sequences": ([],),
    "response_format": ({"type": "text"},),
    "include": ([],),
}
_HINTS = {
    ("completions", "top_logprobs"): "logprobs is the number of alternatives here",
    ("responses", "prompt"): "prompts are not stored here; send their text in input or instructions",
    ("responses", "n"): "a response is one answer; ask several times",
    ("messages", "n"): "a message is one answer; ask several times",
}


def check_placement(body: Body, endpoint: str) -> None:
    """Refuse fields of other endpoints, and passive ones of a wrong type.

    Args:
        endpoint: "chat", "responses", "messages" or "completions".

    Raises:
        RequestError: `param` names the field.
    """
    here = known_fields(endpoint)
    for name, value in body.items():
        if name in _PASSIVE:
            kind, allowed = _PASSIVE[name]
            if value is not None and not isinstance(value, kind):
                refuse(name, value, allowed)
        elif name not in here and not is_neutral(value, _ASKS_NOTHING.get(name, ())):
            owners = [path for other, path in _PATHS.items() if name in known_fields(other)]
            if owners:
                hint = f" ({_HINTS[endpoint, name]})" if (endpoint, name) in _HINTS else ""
                refuse(name, value, f"absent: it belongs to {', '.join(owners)}, not to {_PATHS[endpoint]}{hint}")


def known_fields(endpoint: str) -> frozenset[str]:
    """The names that an endpoint reads, or takes and leaves alone; see `check_placement`."""
    if endpoint == "completions":
        common = frozenset.intersection(*KNOWN_FIELDS.values()) - {"tools", "tool_choice"}
        return common | _COMPLETION_FIELDS
    known = next(fields for protocol, fields in KNOWN_FIELDS.items() if protocol == endpoint)
    return known | _THINKING
