"""B192: a prefix cache that never hits although prompts repeat is told of, once, with the reason; nothing else is."""

import itertools
from typing import Any

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request, RequestReport
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer
from benthic.server.cache_watch import PATIENCE, CacheWatch
from benthic.server.config import ServerConfig
from tests.server.conftest import build, running

PROMPT = tuple(range(300))


class Watched:
    """A watch, a clock, and what was said."""

    def __init__(self, **config: Any) -> None:
        self.said: list[str] = []
        self._watch = CacheWatch(EngineConfig(**config), self.said.append)
        self._now = itertools.count(1.0)

    def ends(
        self,
        prompt: tuple[int, ...] = PROMPT,
        *,
        cached: int = 0,
        cut: Any = "no such prefix",
        opened_at: float | None = None,
        salt: str = "",
        **params: Any,
    ) -> None:
        request = Request(request_id="a", prompt_ids=prompt, params=SamplingParams(**params), cache_salt=salt)
        final = FinalOutput(
            request_id="a",
            token_ids=(),
            logprobs=None,
            finish_reason="stop",
            prompt_len=len(prompt),
            cached_len=cached,
            report=RequestReport(prompt_len=len(prompt), cut=cut),
        )
        opened = next(self._now) if opened_at is None else opened_at
        self._watch.ended(request, final, opened_at=opened, now=next(self._now))


def test_repeats_without_a_hit_are_told_of_once() -> None:
    watched = Watched()
    for _ in range(PATIENCE):
        watched.ends()
    assert watched.said == []
    for _ in range(30):
        watched.ends()
    [said] = watched.said
    assert f"{PATIENCE} prompts in a row" in said
    assert "cache_bytes" in said


def test_after_a_hit_it_may_be_told_again() -> None:
    watched = Watched()
    for cached in [0] * 12 + [128] + [0] * 9:
        watched.ends(cached=cached)
    assert len(watched.said) == 1
    watched.ends()
    assert len(watched.said) == 2


@pytest.mark.parametrize(
    ("config", "cut", "reason"),
    [
        ({"prefix_cache": False}, "not asked", "engine.prefix_cache is false"),
        ({"retention": "none"}, "no window", "engine.retention is none"),
        ({}, "no extras", "routes or picks"),
        ({}, "namespace empty", "a flush"),
    ],
)
def test_the_reason_is_that_of_the_misses(config: dict[str, Any], cut: str, reason: str) -> None:
    watched = Watched(**config)
    for _ in range(PATIENCE + 1):
        watched.ends(cut=cut)
    assert reason in watched.said[0]


def test_traffic_that_repeats_nothing_or_asks_nothing_of_the_cache_is_left_in_peace() -> None:
    watched = Watched()
    for index in range(40):
        watched.ends((index, *PROMPT))  # all different
        watched.ends(PROMPT[:100])  # shorter than a page
        watched.ends(salt=f"user {index}")  # shared with nobody on purpose
        watched.ends(opened_at=0.0)  # sent together: nothing had ended when they came
        watched.ends(prompt_logprobs=0)  # computed whole on purpose
    assert watched.said == []


@pytest.mark.anyio
async def test_a_server_whose_cache_is_off_warns_within_20_requests(
    model: Transformer, caplog: pytest.LogCaptureFixture
) -> None:
    config = EngineConfig(max_num_seqs=8, max_model_len=512, prefix_cache=False)
    engine = Engine(model, config)
    service = build(engine, ServerConfig())
    service.channel._cache_watch = CacheWatch(config)
    async with running(service, engine) as up:
        for _ in range(20):
            await up.json("/v1/completions", prompt=list(PROMPT[:200]), max_tokens=1)
    warnings = [record.message for record in caplog.records if "the prefix cache finds nothing" in record.message]
    assert len(warnings) == 1
