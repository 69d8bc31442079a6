"""What a request gets is what it would get alone: the law of the house, through the whole engine.

Lengths run past the window, both compression ratios and the indexer's top-k, so every kind of entry is read back.
"""

import random

import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.engine.request import Request
from benthic.engine.sampling import SamplingParams
from benthic.engine.scoring import packed_logprobs
from benthic.models.transformer import Transformer
from tests.exactness.serving import alone, answers, random_requests, run

SCHEDULES = {
    "wide": EngineConfig(max_num_seqs=16, max_batched_tokens=2048, debug_checks=True),
    "small chunks": EngineConfig(max_num_seqs=5, max_batched_tokens=37, prefill_chunk=11, debug_checks=True),
    "odd chunks": EngineConfig(max_num_seqs=3, max_batched_tokens=131, prefill_chunk=65, debug_checks=True),
    "one token a pass": EngineConfig(max_num_seqs=1, max_batched_tokens=2, prefill_chunk=1, debug_checks=True),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_batch_order_chunking_and_arrival_gives_the_bits_of_the_request_alone(
    small_model: Transformer, name: str
) -> None:
    rng = random.Random(name)
    is_slow = name == "one token a pass"
    requests = random_requests(rng, 3 if is_slow else 7, longest=150 if is_slow else 400)
    together = run(Engine(small_model, SCHEDULES[name]), requests, rng, chance=0.4)
    assert answers(together) == alone(small_model, requests)


def test_retracted_requests_go_on_with_the_same_bits(small_model: Transformer) -> None:
    rng = random.Random(5)
    requests = [
        Request(
            request_id=f"r{i}",
            prompt_ids=tuple(rng.randrange(2, 512) for _ in range(500)),
            params=SamplingParams(max_tokens=20, seed=i, logprobs=0, ignore_eos=True),
        )
        for i in range(4)
    ]
    # Pages for one context of 1024 tokens and a half: not for four of 520.
    config = EngineConfig(max_num_seqs=4, admission_headroom=0, prefix_cache=False, debug_checks=True)
    engine = Engine(small_model, config, capacity=CacheCapacity(num_pages=16, num_windows=24, num_rows=4, max_len=1024))
    together = run(engine, requests)
    assert engine.stats().num_retractions > 0
    assert answers(together) == alone(small_model, requests)
    assert engine.stats().used_pages == 0


def test_scores_of_whole_sequences_equal_the_engines_logprobs(small_model: Transformer) -> None:
    requests = random_requests(random.Random(2), 6)
    finals = run(Engine(small_model, SCHEDULES["odd chunks"]), requests)
    for request in requests:
        final = finals[request.request_id]
        assert final.logprobs is not None
        scored = packed_logprobs(small_model, [*request.prompt_ids, *final.token_ids])
        assert torch.equal(scored[final.prompt_len - 1 :], torch.tensor([entry.chosen for entry in final.logprobs]))


def test_identical_prompts_at_once_get_identical_answers(small_model: Transformer) -> None:
    [one] = random_requests(random.Random(8), 1)
    requests = [Request(request_id=str(i), prompt_ids=one.prompt_ids, params=one.params) for i in range(8)]
    finals = run(Engine(small_model), requests)
    assert len(set(answers(finals).values())) == 1


def test_a_neighbour_with_nan_logits_fails_alone_and_leaves_nothing_behind(own_model: Transformer) -> None:
    rng = random.Random(11)
    healthy = random_requests(rng, 4, longest=200)
    expected = alone(own_model, healthy)
    poison = 7
    with torch.no_grad():
        own_model.embed.weight[poison] = float("nan")
    healthy = [r for r in healthy if poison not in r.prompt_ids and poison not in expected[r.request_id][0]]
    assert len(healthy) >= 2
    sick = [
        Request(request_id=f"sick{i}", prompt_ids=(5, poison, 9) * 60, params=SamplingParams(max_tokens=4))
        for i in range(2)
    ]
    engine = Engine(own_model, EngineConfig(max_num_seqs=3, max_batched_tokens=150, debug_checks=True))
    finals = run(engine, [sick[0], *healthy[:1], sick[1], *healthy[1:]])
    for request in sick:
        assert finals[request.request_id].finish_reason == "error"
        assert "not finite" in (finals[request.request_id].error or "")
    for request in healthy:
        assert answers(finals)[request.request_id] == expected[request.request_id]


def test_a_changed_thread_count_is_put_right_before_the_next_pass(small_model: Transformer) -> None:
    requests = random_requests(random.Random(3), 2, longest=64)
    engine = Engine(small_model, EngineConfig(max_num_seqs=2))
    torch.set_num_threads(2)
    finals = run(engine, requests)
    assert torch.get_num_threads() == 1
    assert answers(finals) == alone(small_model, requests)
