"""Whatever a client sends, the answer is a 200 or a refusal, and the next request is served."""

import copy
import json
import random
from typing import Any

import pytest

from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio

CHAT = {
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
COMPLETION = {
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
RESPONSE = {
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
MESSAGE = {
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
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 0.5, -0.0, 1e308, 2**31, 2**63, 2**64, -(2**63), "", "1", "x", "\0", "\ud800"),
    *(
        float("nan"),
        float("inf"),
        [],
        {},
        [[]],
        [None],
        [1, "a"],
        {"type": "x"},
        {"a": {"b": {}}},
        "🌊" * 50,
        "x" * 9000,
    ),
    *(
        "auto",
        "required",
        "none",
        "json_object",
        {"type": "json_object"},
        {"type": "function", "function": {"name": "add"}},
    ),
    *({"type": "regex", "regex": "("}, {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#"}}}),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((*path, key), *places(inner, (*path, key)))]


def mutate(body: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """One to three random places deleted, replaced, duplicated or given a new neighbour."""
    body = json.loads(json.dumps(body))
    for _ in range(rng.randint(1, 3)):
        *outer, key = rng.choice(places(body))
        target: Any = body
        for step in outer:
            target = target[step]
        kind = rng.randrange(4)
        if kind == 0:
            del target[key]
        elif kind == 1 and isinstance(target, list):
            target.insert(key, target[key])
        elif kind == 2 and isinstance(target, dict):
            target[rng.choice(("role", "content", "type", "name", "zz", ""))] = copy.deepcopy(rng.choice(ODD_VALUES))
        else:
            target[key] = copy.deepcopy(rng.choice(ODD_VALUES))
        if not places(body):
            break
    return body


BODIES = {
    "/v1/chat/completions": (CHAT, "data: [DONE]"),
    "/v1/completions": (COMPLETION, "data: [DONE]"),
    "/v1/responses": (RESPONSE, '"response.'),
    "/v1/responses/input_tokens": (RESPONSE, ""),
    "/v1/messages": (MESSAGE, '"message_stop"'),
    "/v1/messages/count_tokens": (MESSAGE, ""),
}
"""A good body of each endpoint, and what stands in the last frame of its streams."""


@pytest.mark.parametrize("path", BODIES)
async def test_mutated_requests_are_answered_or_refused_and_never_break_the_server(
    scripted: Any, seed: int, path: str
) -> None:
    rng = random.Random(seed + 12345)
    outcomes: set[int] = set()
    body, last = BODIES[path]
    async with scripted("so it is" + EOS) as up:
        for _ in range(4000):
            raw = json.dumps(mutate(body, rng))
            response = await up.client.post(path, content=raw, headers={"content-type": "application/json"})
            outcomes.add(response.status_code)
            assert response.status_code in (200, 400, 404), f"{response.status_code} for {raw[:2000]}: {response.text}"
            if response.status_code != 200:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
                assert ("request_id" in response.json()) is ("messages" in path)
            elif response.headers["content-type"].startswith("text/event-stream"):
                assert last in response.text.rstrip().rpartition("\n\n")[2]
        assert up.service.channel.num_open == 0
        quiet = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        assert (await up.post(path, **quiet)).status_code == 200
    assert {200, 400} <= outcomes
