"""A good body of each endpoint, with as many of its fields as go together."""

from typing import Any

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is 347 + 285?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "632"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Adds.",
                "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            },
        }
    ],
    "tool_choice": "auto",
    "thinking": {"type": "enabled"},
    "response_format": {"type": "text"},
    "max_tokens": 6,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "n": 2,
    "seed": 4,
    "stop": ["x"],
    "logprobs": True,
    "top_logprobs": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
}
COMPLETION: dict[str, Any] = {
    "model": "tiny",
    "prompt": ["Hello", "there"],
    "max_tokens": 5,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "logprobs": 2,
    "echo": True,
    "stop": ["x"],
    "stop_token_ids": [3],
    "seed": 4,
    "stream": False,
    "suffix": None,
    "logit_bias": {},
}
RESPONSE: dict[str, Any] = {
    "model": "tiny",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "What is 347 + 285?"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "carry"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "benthic1.Y2Fycnk="},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "632"},
    ],
    "tools": [
        {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"type": "web_search"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": "auto"},
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "max_output_tokens": 6,
    "temperature": 0.7,
    "top_logprobs": 2,
    "store": True,
    "truncation": "auto",
    "stream": True,
}
MESSAGE: dict[str, Any] = {
    "model": "tiny",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is 347 + 285?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "carry", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": "no"}]},
    ],
    "tools": [
        {"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}, "type": "custom"}
    ],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["x"],
    "max_tokens": 6,
    "temperature": 0.7,
    "top_k": 5,
    "stream": True,
}
TOKENIZE: dict[str, Any] = {
    "model": "tiny",
    "prompt": "What is 347 + 285?",
    "add_special_tokens": True,
    "return_token_strs": True,
}
DETOKENIZE: dict[str, Any] = {"model": "tiny", "tokens": [0, 5, 17, 300, 9]}
BODIES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": (CHAT, "data: [DONE]"),
    "/v1/completions": (COMPLETION, "data: [DONE]"),
    "/v1/responses": (RESPONSE, '"response.'),
    "/v1/responses/input_tokens": (RESPONSE, ""),
    "/v1/messages": (MESSAGE, '"message_stop"'),
    "/v1/messages/count_tokens": (MESSAGE, ""),
    "/tokenize": (TOKENIZE, ""),
    "/detokenize": (DETOKENIZE, ""),
}
"""A good body of each endpoint, and what stands in the last frame of its streams."""
