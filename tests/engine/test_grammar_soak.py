"""Grammars under everything at once: arrivals, cancels, pauses, drafts and a cache too small for all."""

import random

import pytest

from benthic.cache.geometry import CacheCapacity
from benthic.engine.engine import Engine
from benthic.models.transformer import Transformer
from tests.engine.automaton_masks import AutomatonMasks
from tests.engine.test_grammars import Asked, each_alone
from tests.engine.test_soak import Soak, config_of
from tests.exactness.serving import answers


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(10, 30))])
def test_a_soak_gives_every_request_what_it_gets_alone(small_model: Transformer, seed: int) -> None:
    rng = random.Random(seed)
    asked = Asked(seed, 6 if seed < 10 else 30, longest=300)
    capacity = CacheCapacity(num_pages=rng.randint(6, 10), num_windows=rng.randint(12, 20), num_rows=6, max_len=640)
    load = Soak(Engine(small_model, config_of(rng), capacity=capacity, masks=AutomatonMasks()), rng)
    load.run(asked.requests)
    load.engine.close()
    assert load.engine.stats().used_pages == 0
    expected, found = each_alone(small_model, asked.requests), answers(load.finals)
    assert found.keys() == expected.keys()
    for name, bits in found.items():
        if bits.finish_reason == "cancelled":
            assert name in load.cancelled
            assert bits.token_ids == expected[name].token_ids[: len(bits.token_ids)]
        else:
            assert bits == expected[name], (seed, name)
