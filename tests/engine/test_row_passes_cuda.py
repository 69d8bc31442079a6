"""CUDA graphs of decoding passes: every bucket gives the bits of planned passes, whatever comes between them."""

import random

import pytest
import torch

from benthic.cache.geometry import CacheCapacity
from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.models.checkpoint import dummy_model
from benthic.models.transformer import Transformer
from tests.engine.conftest import CONFIG
from tests.exactness.serving import Bits, assert_same, ids, random_requests, request, serve

pytestmark = pytest.mark.gpu

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@pytest.fixture(scope="module", params=DTYPES)
def model(request: pytest.FixtureRequest) -> Transformer:
    return build(DTYPES[request.param])


def build(dtype: torch.dtype) -> Transformer:
    model = dummy_model(CONFIG, seed=3, device="cuda", dtype=dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim >= 2 and "hc_" not in name:
                weight.mul_(6.0)
    return model.freeze()


def engine_of(model: Transformer, *, graphs: bool, capacity: CacheCapacity | None = None, **settings: object) -> Engine:
    given: dict[str, object] = {"max_num_seqs": 12, "cache_bytes": 1 << 28, "debug_checks": True, "cuda_graphs": graphs}
    return Engine(model, EngineConfig(**{**given, **settings}), capacity=capacity)  # type: ignore[arg-type]


def planned(model: Transformer, requests: list, **settings: object) -> dict[str, Bits]:
    """The answers without any graph, each request by itself."""
    found = {}
    for one in requests:
        engine = engine_of(model, graphs=False, prefix_cache=False, max_num_seqs=1, **settings)
        found[one.request_id] = Bits.of(serve(engine, [one])[one.request_id])
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 7, 11])
def test_every_bucket_gives_the_bits_of_planned_passes(model: Transformer, count: int) -> None:
    rng = random.Random(count)
    requests = [request(f"r{n}", ids(rng, 20 + 30 * n), max_tokens=30, temperature=n % 2 * 0.7) for n in range(count)]
    engine = engine_of(model, graphs=True, graph_rows=(1, 2, 4, 8, 12))
    assert_same(planned(model, requests), serve(engine, requests))
    assert engine.stats().num_replayed_steps >= 25


def test_random_requests_with_hits_and_rules_keep_their_bits(model: Transformer) -> None:
    rng = random.Random(4)
    requests = random_requests(rng, 12)
    engine = engine_of(model, graphs=True, prefill_chunk=40)
    engine.warm_up(lambda text: None)
    assert_same(planned(model, requests), serve(engine, requests, rng, 0.4))
    again = [request(f"again {n}", one.prompt_ids, max_tokens=9) for n, one in enumerate(requests)]
    assert_same(planned(model, again), serve(engine, again, rng, 0.4))


@pytest.mark.parametrize(("drafter", "depth"), [("ngram", 3), ("mtp", 3)])
def test_verification_keeps_every_bit(model: Transformer, drafter: str, depth: int) -> None:
    few = tuple((token_id, 60.0) for token_id in (5, 6, 7))
    rng = random.Random(depth)
    requests = [
        request(f"r{n}", [rng.choice(few)[0] for _ in range(126 + 9 * n)], max_tokens=30, logit_bias=bias)
        for n, bias in enumerate((few, few, (), ()))
    ]
    engine = engine_of(model, graphs=True, drafter=drafter, draft_len=depth, draft_adaptive=False)
    assert_same(planned(model, requests), serve(engine, requests))
    stats = engine.stats()
    assert stats.num_drafted > 10 and stats.num_replayed_steps > 5


def test_retraction_cancelling_and_new_weights_between_replays_change_no_answer() -> None:
    model, rng = build(torch.bfloat16), random.Random(9)
    requests = [request(f"r{n}", ids(rng, 60), max_tokens=90) for n in range(6)]
    capacity = CacheCapacity(num_pages=8, num_windows=16, num_rows=8, max_len=256)
    engine = engine_of(model, graphs=True, admission_headroom=0, capacity=capacity)
    for one in requests:
        engine.add(one)
    for _ in range(12):
        engine.step()
    engine.cancel("r0")
    finals = serve(engine, [])
    del finals["r0"]
    assert_same(planned(model, requests[1:]), finals)
    assert engine.stats().num_retractions > 0
    state = {name: t.clone() * 1.25 if t.is_floating_point() else t for name, t in model.state_dict().items()}
    engine.update_weights(state)
    finals = serve(engine, requests)
    assert_same(planned(model, requests), finals)
