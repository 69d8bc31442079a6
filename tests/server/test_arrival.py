"""What a client waits for begins when its request comes, not when the engine hears of it."""

import time
from typing import Any

import pytest

from benthic.text.tokenizer import EOS

pytestmark = pytest.mark.anyio
SLOW_S = 0.3


async def test_time_to_first_token_holds_the_time_to_read_and_tokenise_the_body(
    scripted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scripted("a" + EOS) as up:
        run = up.service.intake.run

        async def slow(body: object, work: Any, *args: Any, **kwargs: Any) -> Any:
            return await run(body, lambda: (time.sleep(SLOW_S), work(*args, **kwargs))[1])

        monkeypatch.setattr(up.service.intake, "run", slow)
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
            ("/v1/completions", {"prompt": "Hi"}),
        ):
            await up.json(path, **body)
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds"):
            registry = up.service.metrics.registry
            assert registry.get_sample_value(f"benthic_{name}_count") == 2
            assert (registry.get_sample_value(f"benthic_{name}_sum") or 0.0) >= 2 * SLOW_S


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "Hi"}), ("/detokenize", {"tokens": [1]})])
async def test_unknown_fields_and_other_models_are_refused_by_the_vocabulary_routes_too(
    scripted: Any, path: str, body: dict[str, Any]
) -> None:
    async with scripted("a" + EOS) as up:
        await up.json(path, **body, model="tiny", odd=1)
        assert up.service.metrics.registry.get_sample_value("benthic_unknown_fields_total") == 1
        assert (await up.post(path, **body, model="other")).status_code == 404
    async with scripted("a" + EOS, strict_fields=True) as up:
        answer = await up.post(path, **body, odd=1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "odd")
