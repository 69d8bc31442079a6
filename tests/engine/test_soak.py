"""Everything at once: arrivals, cancels and a cache too small for all, for as long as it takes."""

import random

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import FinalOutput, Request
from benthic.engine.sampling import SamplingParams
from benthic.models.transformer import Transformer


def requests_of(rng: random.Random, count: int) -> list[Request]:
    # A few shared prompts among them: equal prompts side by side must not help or hurt each other.
    shared = [tuple(rng.randrange(2, 512) for _ in range(n)) for n in (40, 260, 520)]
    return [
        Request(
            request_id=f"r{i}",
            prompt_ids=rng.choice(shared)
            if rng.random() < 0.3
            else tuple(rng.randrange(2, 512) for _ in range(rng.randint(1, 560))),
            params=SamplingParams(max_tokens=rng.randint(1, 30), seed=i, logprobs=0, ignore_eos=True),
        )
        for i in range(count)
    ]


def soak(model: Transformer, seed: int, count: int) -> None:
    rng = random.Random(seed)
    requests = requests_of(rng, count)
    engine = Engine(
        model,
        EngineConfig(
            max_num_seqs=6,
            max_batched_tokens=rng.choice([40, 300]),
            prefill_chunk=rng.choice([7, 64]),
            max_model_len=640,
            cache_bytes=5 << 20,
            admission_headroom=0,
            debug_checks=True,
        ),
    )
    todo, finals, cancelled = list(requests), {}, set()
    while todo or engine.has_work():
        while todo and rng.random() < 0.3:
            engine.add(todo.pop())
        if rng.random() < 0.03:
            name = f"r{rng.randrange(count)}"
            cancelled.add(name)
            engine.cancel(name)
        for event in engine.step():
            if isinstance(event, FinalOutput):
                assert event.request_id not in finals
                finals[event.request_id] = event
    assert len(finals) == count
    assert engine.stats().used_pages == 0
    alone = Engine(model, EngineConfig(max_num_seqs=1))
    for request in requests:
        alone.add(request)
        events = [event for event in iter(lambda: alone.step() if alone.has_work() else None, None) for event in event]
        final, found = events[-1], finals[request.request_id]
        assert isinstance(final, FinalOutput)
        if found.finish_reason == "cancelled":
            assert request.request_id in cancelled
            assert found.token_ids == final.token_ids[: len(found.token_ids)]
        else:
            assert found == final


def test_a_short_soak_gives_every_request_what_it_gets_alone(small_model: Transformer) -> None:
    soak(small_model, seed=1, count=8)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 10))
def test_a_long_soak_gives_every_request_what_it_gets_alone(small_model: Transformer, seed: int) -> None:
    soak(small_model, seed, count=60)
