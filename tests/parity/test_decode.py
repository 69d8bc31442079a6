"""Decode equals prefill, bit for bit: token by token and in chunks through the serving cache."""

import random
from dataclasses import dataclass, replace

import pytest
import torch

from benthic.cache.block_manager import CacheManager
from benthic.cache.buffers import CacheBuffers
from benthic.cache.layout import plan_layout
from benthic.cache.serving_context import ServingContext
from benthic.models.checkpoint import empty_model
from benthic.models.rotary import layer_frequencies
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer
from tests.checkpoint.sizes import SMALL
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


@dataclass
class Serving:
    """One sequence in the serving cache."""

    model: Transformer

    def __post_init__(self):
        config = self.model.config
        layout = plan_layout(
            config, max_num_seqs=1, max_batched_tokens=512, max_model_len=512, cache_bytes=1 << 28, entry_bytes=4
        )
        self.cache = CacheManager(layout)
        self.buffers = CacheBuffers(layout, dtype=self.model.dtype, device=self.model.device)
        self.frequencies = {layer.ratio: layer_frequencies(config, layer.ratio) for layer in layout.layers}
        self.cache.open(0, LENGTH)

    @torch.inference_mode()
    def logits(self, ids, start):
        """Logits of tokens start .. start + len(ids) - 1, with everything before them cached."""
        self.cache.grow(0, start + len(ids))
        self.buffers.clear(self.cache.take_fresh())
        rows = build_rows([(0, start, ids)], self.model.min_rows)
        context = ServingContext(self.model.config, rows, [self.cache.tables[0]], self.buffers, self.frequencies)
        out = self.model.logits(self.model.hidden(self.model(rows, context)))[: len(ids)]
        self.cache.slide(0, start + len(ids))
        return out


def in_chunks(model, ids, lengths):
    """Logits of a sequence that comes in chunks of these lengths."""
    serving, parts, start = Serving(model), [], 0
    for length in lengths:
        parts.append(serving.logits(ids[start : start + length], start))
        start += length
    assert start == len(ids)
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
