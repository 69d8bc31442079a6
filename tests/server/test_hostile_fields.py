"""Any JSON value in any field of any endpoint: the answer is a reply, or a refusal that names the field."""

import json
import re
from typing import Any

import pytest

from benthic.errors import BenthicError
from benthic.server.body import parse_object
from benthic.server.errors import api_error
from benthic.server.protocols import open_answer
from benthic.text.placement import known_fields
from benthic.text.protocol_fields import NEUTRAL_VALUES
from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio
ASK = [{"role": "user", "content": "hi"}]
ROUTES = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": ASK, "max_tokens": 3},
    "responses": {"input": "hi", "max_output_tokens": 3},
    "messages": {"messages": ASK, "max_tokens": 3},
    "completions": {"prompt": "hi", "max_tokens": 3},
}
FIELDS = sorted(frozenset(NEUTRAL_VALUES).union(*map(known_fields, BODIES)))
HOSTILE: list[Any] = [
    *(None, True, False, 0, 1, -1, 7, 0.5, 1e308, -(2**63), 2**64, 10**400),
    *("", "x", "\0", "\ud800", "auto", "none", "1", "x" * 5000),
    *([], [[]], [None], [True], [1.5], [-1], [2**70], ["x"], [""], [{}], [1, "x"], ["audio"], ASK, [[[[[[[[]]]]]]]]),
    *({"x": 2**70}, {"format": 1}, {"effort": 1}, {"include_usage": 1}, {"type": "enabled", "budget_tokens": "x"}),
    *({}, {"x": 1}, {"type": "x"}, {"type": None}, {"type": []}, {"": {}}, {"1": None}, {"type": "function"}),
]
ONE_OF_EACH_TYPE: list[Any] = [True, 0.125, "\0", [[]], {"": {}}]
"""No field takes all of these: a name that does is not read."""


@pytest.mark.parametrize("endpoint", BODIES)
async def test_any_value_in_any_field_is_answered_or_refused_by_the_name_of_the_field(
    scripted: Any, endpoint: str
) -> None:
    async with scripted("so it is" + EOS) as up:
        for name in FIELDS:
            for value in HOSTILE:
                status, error = await ask(up, endpoint, {**BODIES[endpoint], name: value})
                found = f"{name} = {value!r:.200}: {status} {error}"
                assert status in (200, 400, 404), found
                assert value is not None or name in BODIES[endpoint] or status == 200, found
                if status != 200:
                    assert error["message"] and error["type"] == "invalid_request_error", found
                    if error["code"] == "context_length_exceeded":  # of all that the prompt is made of
                        assert error["param"], found
                        continue
                    assert re.split(r"[.\[]", error["param"] or "")[0] == name, found
        assert up.service.channel.num_open == 0


@pytest.mark.parametrize("endpoint", BODIES)
async def test_no_field_of_the_tables_takes_values_of_every_type(scripted: Any, endpoint: str) -> None:
    async with scripted("so it is" + EOS) as up:
        for name in FIELDS:
            answers = [await ask(up, endpoint, {**BODIES[endpoint], name: value}) for value in ONE_OF_EACH_TYPE]
            assert any(status == 400 for status, _ in answers), name


async def ask(up: Any, endpoint: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and error object of an answer; protocols without a route are asked where a route would ask them."""
    raw = json.dumps(body)
    if endpoint in ROUTES:
        response = await up.client.post(ROUTES[endpoint], content=raw, headers={"content-type": "application/json"})
        return response.status_code, {} if response.status_code == 200 else response.json()["error"]
    try:
        answer = await open_answer(up.service, endpoint, parse_object(raw.encode()))
        try:
            await answer.whole()
        finally:
            answer.close()
    except BenthicError as error:
        refusal = api_error(error)
        return refusal.status, refusal.body()["error"]
    return 200, {}
