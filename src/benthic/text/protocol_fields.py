"""Which fields each protocol knows, which of them Benthic cannot serve, and which pass only with a neutral value."""

from typing import Any, Literal

from benthic.text.grammar_fields import GRAMMAR_FIELDS
from benthic.text.sampling_fields import RULE_FIELDS, WISH_FIELDS

Protocol = Literal["chat", "responses", "messages"]
"""`/v1/chat/completions`, `/v1/responses` (OpenAI) and `/v1/messages` (Anthropic)."""

_SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "min_tokens", "ignore_eos", "stop_token_ids"),
    "stop_in_reasoning",
    *(*RULE_FIELDS, *WISH_FIELDS, *GRAMMAR_FIELDS),
}
_SHARED = {"model", "stream", "tools", "tool_choice", "metadata", "user", "service_tier"}

KNOWN_FIELDS: dict[Protocol, frozenset[str]] = {
    "chat": frozenset(
        _SHARED
        | _SAMPLING
        | {"messages", "max_tokens", "max_completion_tokens", "n", "stop", "logprobs", "top_logprobs", "stream_options"}
        | {"response_format", "parallel_tool_calls", "store"}
        | {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "verbosity"}
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
            "prompt_cache_options",
            "prompt_cache_retention",
            "safety_identifier",
            "stream_options",
            "context_management",
        }
    ),
    "messages": frozenset(
        _SHARED
        | _SAMPLING
        | {"messages", "system", "max_tokens", "stop_sequences", "output_config", "output_format", "cache_control"}
        | {"context_management", "inference_geo", "speed"}
    ),
}
"""Fields beside those of `thinking.py` that are read, or that change nothing a reply could show."""

NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "truncate_prompt_tokens": (),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "documents": ([],),
    "skip_special_tokens": (True,),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "lora_path": (),
    "no_stop_trim": (False,),
    "web_search_options": (),
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

UNSUPPORTED = "it is not supported, and ignoring it would change the reply"
_NOT_STORED = "replies are not stored here, so send the whole conversation in input"
_RUNS_NO_TOOLS = "this server runs no tools; offer functions and carry out their calls yourself"
UNSUPPORTED_REASONS: dict[str, str] = {
    "previous_response_id": _NOT_STORED,
    "conversation": _NOT_STORED,
    "background": "a reply is made while its client waits for it; use stream for long ones",
    "mcp_servers": _RUNS_NO_TOOLS,
    "container": _RUNS_NO_TOOLS,
    "continue_final_message": "a last message of the assistant is continued by /v1/messages",
    "add_generation_prompt": "a reply always begins after its prompt; /v1/completions continues a text as it stands",
    "chat_template": "prompts are written as the checkpoint was trained",
    "documents": "put their text into a message",
    "skip_special_tokens": "control tokens are never shown; return_token_ids has their ids",
    "web_search_options": _RUNS_NO_TOOLS,
    "modalities": "the model writes text only",
    "audio": "the model writes text only",
    "functions": "it is the old form of tools",
    "function_call": "it is the old form of tool_choice",
}
"""Why, where there is more to say than `UNSUPPORTED`."""


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
