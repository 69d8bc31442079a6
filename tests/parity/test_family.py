"""Our models equal transformers' DeepSeek-V2, V3 and V3.2, as they read a prompt and as they decode.

Where transformers differs from ours on purpose, the models compared keep clear of it: docs/family.md lists where,
and test_family_departures.py holds it to that.
"""

import random

import pytest
import torch

from tests.exactness.passes import PagedPasses
from tests.parity.family import FAMILIES, ours_of_family, random_family_model, random_family_sizes
from tests.parity.models import packed_logits, random_ids, transformers_logits

LENGTH = 200
# float32 sums in another order; logits have scale 5.
TOLERANCE = 5e-5
SEEDS = dict.fromkeys(FAMILIES, tuple(range(8)))
# With 3, two tokens' index scores lie 1e-6 apart at the edge of a choice: either is right.
SEEDS["deepseek_v32"] = (0, 1, 2, 4, 5, 6, 7, 8)


@pytest.mark.parametrize(("family", "seed"), [(family, seed) for family in FAMILIES for seed in SEEDS[family]])
def test_logits_equal_those_of_transformers_in_prefill_and_in_decode(family, seed):
    sizes = random_family_sizes(family, seed)
    theirs = random_family_model(sizes, seed)
    ids = random_ids(sizes["vocab_size"], LENGTH, seed)
    expected = transformers_logits(theirs, ids)
    ours = ours_of_family(theirs, sizes).freeze()
    found = packed_logits(ours, ids)
    assert 3 < expected.abs().max() < 8
    assert (found - expected).abs().max() <= TOLERANCE
    assert torch.equal(_decoded(ours, ids, seed), found)


@pytest.mark.parametrize("family", FAMILIES)
def test_decode_with_the_cache_of_transformers_agrees_too(family):
    sizes = random_family_sizes(family, 2)
    theirs = random_family_model(sizes, 2)
    ids = random_ids(sizes["vocab_size"], 80, 2)
    with torch.no_grad():
        out = theirs(torch.tensor([ids[:60]]), use_cache=True)
        cache = out.cache
        parts = [out.logits[0]]
        for token in ids[60:]:
            out = theirs(torch.tensor([[token]]), cache=cache, use_cache=True)
            parts.append(out.logits[0])
    assert (packed_logits(ours_of_family(theirs, sizes), ids) - torch.cat(parts)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_models_compared_cover_what_may_vary(family):
    drawn = [random_family_sizes(family, seed) for seed in SEEDS[family]]
    assert {bool(sizes["first_k_dense_replace"]) for sizes in drawn} == {True, False}
    assert {sizes["n_group"] > 1 for sizes in drawn} == {True, False}
    assert any(sizes["topk_group"] < sizes["n_group"] for sizes in drawn)
    assert {sizes["n_shared_experts"] for sizes in drawn} == {1, 2}
    yarn = [sizes["rope_scaling"] for sizes in drawn if "rope_scaling" in sizes]
    assert 0 < len(yarn) < len(drawn)
    assert any(one["mscale"] != one["mscale_all_dim"] for one in yarn)
    if family == "deepseek_v32":
        assert any(sizes["index_topk"] < LENGTH // 2 for sizes in drawn)
    else:
        assert {sizes["q_lora_rank"] is None for sizes in drawn} == {True, False}
    for name, least in {
        "num_attention_heads": 2, "kv_lora_rank": 3, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 2,
        "num_experts_per_tok": 3, "n_routed_experts": 3, "hidden_size": 2, "routed_scaling_factor": 2,
    }.items():  # fmt: skip
        assert len({sizes[name] for sizes in drawn}) >= least, name


def _decoded(model, ids, seed):
    """Logits of a sequence that comes in chunks through the cache, most of them single tokens."""
    passes = PagedPasses(model, num_rows=1, max_len=256)
    row, pick, parts = passes.open(ids, use_cache=False), random.Random(seed), []
    while (start := row.committed_len) < len(ids):
        end = min(start + pick.choice([1, 1, 1, 1, 2, 17, 63]), len(ids))
        parts += passes.run([(row, ids[start:end])])
        passes.cache.commit(row, end, ids)
    return torch.cat(parts)
