"""Which fields each protocol knows, which of them Benthic cannot serve, and which pass only with a neutral value."""

from typing import Any, Literal

from benthic.text.sampling_fields import RULE_FIELDS, WISH_FIELDS

Protocol = Literal["chat", "responses", "messages"]
"""`/v1/chat/completions`, `/v1/responses` (OpenAI) and `/v1/messages` (Anthropic)."""

_SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "ignore_eos", "stop_token_ids"),
    "stop_in_reasoning",
    *(*RULE_FIELDS, *WISH_FIELDS),
}
_SHARED = {"model", "stream", "tools", "tool_choice", "metadata", "user", "service_tier"}

KNOWN_FIELDS: dict[Protocol, frozenset[str]] = {
    "chat": frozenset(
        _SHARED
        | _SAMPLING
        | {"messages", "max_tokens", "max_completion_tokens", "n", "stop", "logprobs", "top_logprobs", "stream_options"}
        | {"response_format", "parallel_tool_calls", "store"}
        | {"prompt_cache_key", "safety_identifier", "verbosity"}
    ),
    "responses": frozenset(
        _SHARED
        | _SAMPLING
        | {"input", "instructions", "max_output_tokens", "reasoning", "text", "top_logprobs", "parallel_tool_calls"}
        | {
            "store",
            "include",
            "truncation",
            "max_tool_calls",
            "prompt_cache_key",
            "safety_identifier",
            "stream_options",
        }
    ),
    "messages": frozenset(
        _SHARED
        | _SAMPLING
        | {"messages", "system", "max_tokens", "stop_sequences", "output_config", "output_format", "cache_control"}
    ),
}
"""Fields beside those of `thinking.py` that are read, or that change nothing a reply could show."""

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "truncate_prompt_tokens": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "include_stop_str_in_output": (False,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "previous_response_id": (),
    "conversation": (),
    "background": (False,),
    "mcp_servers": ([],),
    "container": (),
}
"""Fields that would change the reply if they were obeyed: refused unless null or one of these values."""


def is_neutral(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether a value asks for nothing. true is not 1 and false not 0, as Python would have it."""
    return value is None or any(
        value == allowed and isinstance(value, bool) == isinstance(allowed, bool) for allowed in neutral
    )


MAX_TOKENS_FIELD: dict[Protocol, str] = {
    "chat": "max_tokens",
    "responses": "max_output_tokens",
    "messages": "max_tokens",
}
