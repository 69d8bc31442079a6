"""Requests that have killed other servers."""

from typing import Any

import pytest

pytestmark = pytest.mark.anyio
ABSENT = object()


async def test_b176_nothing_to_go_on_from_is_refused_and_kills_nobody(served: Any) -> None:
    for prompt in ("", [""], [], [[]], None, ABSENT, ["a", ""]):
        body = {"max_tokens": 1} if prompt is ABSENT else {"prompt": prompt, "max_tokens": 1}
        answer = await served.client.post("/v1/completions", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt"), prompt
    for messages in ([], None):
        answer = await served.client.post("/v1/chat/completions", json={"messages": messages})
        assert answer.status_code == 400, messages
    # A space is a prompt, and an empty message is one between its markers.
    assert (await served.post("/v1/completions", prompt=" ", max_tokens=1)).status_code == 200
    silent = [{"role": "user", "content": ""}]
    assert (await served.post("/v1/chat/completions", messages=silent, max_tokens=1)).status_code == 200
    assert served.service.channel.num_open == 0
