"""Decode equals prefill, bit for bit: token by token and in chunks through the serving cache."""

import random
from dataclasses import replace

import pytest
import torch

from benthic.models.checkpoint import empty_model
from tests.checkpoint.sizes import SMALL
from tests.exactness.passes import PagedPasses
from tests.parity.models import (
    ours_with_weights_of,
    packed_logits,
    random_ids,
    random_ours,
    random_sizes,
    random_transformers_model,
    transformers_logits,
)

LENGTH = 300


def in_chunks(model, ids, lengths):
    """Logits of a sequence that comes in chunks of these lengths."""
    assert sum(lengths) == len(ids)
    passes = PagedPasses(model, num_rows=1, max_len=512)
    row, parts = passes.open(ids, use_cache=False), []
    for length in lengths:
        start = row.committed_len
        parts += passes.run([(row, ids[start : start + length])])
        passes.cache.commit(row, start + length, ids)
    return torch.cat(parts)


@pytest.mark.parametrize("seed", [4, 22, 28])
def test_token_by_token_equals_prefill_bit_for_bit(seed):
    sizes = random_sizes(seed)
    model = ours_with_weights_of(random_transformers_model(sizes, seed), sizes).freeze()
    ids = random_ids(sizes["vocab_size"], LENGTH, seed)
    assert torch.equal(in_chunks(model, ids, [1] * LENGTH), packed_logits(model, ids))


@pytest.mark.parametrize("seed", [1, 2, 3, 7, 8, 9, 19, 31])
def test_any_chunking_equals_prefill_bit_for_bit(seed):
    sizes = random_sizes(seed)
    model = ours_with_weights_of(random_transformers_model(sizes, seed), sizes)
    ids = random_ids(sizes["vocab_size"], LENGTH, seed)
    pick, lengths = random.Random(seed), []
    while (left := LENGTH - sum(lengths)) > 0:
        lengths.append(min(left, pick.choice([1, 2, 3, 5, 17, 63, 64, 65, 128])))
    assert torch.equal(in_chunks(model, ids, lengths), packed_logits(model, ids))


@pytest.mark.parametrize("numerics", ["plain", "quantized"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_every_policy_and_dtype_decodes_as_it_prefills(numerics, dtype):
    config = replace(SMALL, index_n_heads=16)
    weights = random_ours(config, seed=6)
    model = empty_model(config, device="cpu", dtype=dtype, numerics=numerics)
    model.load_state_dict(weights.state_dict())
    ids = random_ids(config.vocab_size, 160, 6)
    chunks = [1] * 70 + [61] + [1] * 29
    assert torch.equal(in_chunks(model, ids, chunks), packed_logits(model, ids))


def test_decode_with_the_cache_of_transformers_agrees_too():
    seed = 4
    sizes = random_sizes(seed)
    theirs = random_transformers_model(sizes, seed)
    ids = random_ids(sizes["vocab_size"], LENGTH, seed)
    ours = in_chunks(ours_with_weights_of(theirs, sizes), ids, [150] + [1] * 150)
    assert (ours - transformers_logits(theirs, ids)).abs().max() <= 5e-5
