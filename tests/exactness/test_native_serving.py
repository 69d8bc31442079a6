"""An engine over weights and cache in the released formats: answers ignore batch, chunks, hits, drafts and graphs.

The model has the heads and widths that the Hopper kernels are written for, and little else.
"""

import random
from dataclasses import replace

import pytest

from benthic.engine.config import EngineConfig
from benthic.engine.engine import Engine
from benthic.models.checkpoint import dummy_model
from benthic.models.released import FLASH
from benthic.models.transformer import Transformer
from tests.exactness.serving import Bits, assert_same, ids, random_requests, request, serve

pytestmark = pytest.mark.gpu

NARROW_FLASH = replace(
    FLASH,
    vocab_size=512,
    hidden_size=512,
    num_hidden_layers=4,
    compress_ratios=(0, 4, 128, 4, 0),
    q_lora_rank=256,
    o_lora_rank=128,
    index_topk=32,
    moe_intermediate_size=256,
    n_routed_experts=16,
    num_experts_per_tok=4,
    num_hash_layers=1,
    max_position_embeddings=8192,
    initializer_range=0.06,
)


@pytest.fixture(autouse=True)
def place() -> None:
    """On a GPU alone, whatever places the other tests of this folder take."""


@pytest.fixture(scope="module")
def model() -> Transformer:
    return dummy_model(NARROW_FLASH, seed=2, device="cuda", numerics="quantized", weights="native").freeze()


def engine_of(model: Transformer, **settings: object) -> Engine:
    given: dict[str, object] = {
        "weights": "native",
        "cache_storage": "official",
        "max_num_seqs": 12,
        "cache_bytes": 1 << 28,
        "max_model_len": 4096,
        "debug_checks": True,
    }
    return Engine(model, EngineConfig(**{**given, **settings}))  # type: ignore[arg-type]


def alone(model: Transformer, requests: list, **settings: object) -> dict[str, Bits]:
    """The answers of planned passes, each request by itself, its prompt whole."""
    found = {}
    for one in requests:
        engine = engine_of(model, cuda_graphs=False, prefix_cache=False, max_num_seqs=1, **settings)
        found[one.request_id] = Bits.of(serve(engine, [one])[one.request_id])
    return found


def requests_of(count: int) -> list:
    rng = random.Random(count)
    return [request(f"r{n}", ids(rng, 20 + 130 * n), max_tokens=24, temperature=n % 2 * 0.7) for n in range(count)]


@pytest.mark.parametrize("settings", [
    {"cuda_graphs": False},
    {"cuda_graphs": True, "graph_rows": (1, 4, 12)},
    {"cuda_graphs": True, "graph_rows": (1, 4, 12), "prefill_chunk": 64, "max_batched_tokens": 100},
    {"cuda_graphs": True, "graph_rows": (1, 12), "drafter": "ngram"},
])  # fmt: skip
def test_answers_ignore_company_and_schedule(model, settings):
    requests = requests_of(7)
    assert_same(alone(model, requests), serve(engine_of(model, **settings), requests))


def test_random_requests_with_hits_keep_their_bits(model):
    requests = random_requests(random.Random(4), 10)
    engine = engine_of(model, graph_rows=(1, 4, 12))
    assert_same(alone(model, requests), serve(engine, requests))
