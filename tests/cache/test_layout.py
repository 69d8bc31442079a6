"""A cache's size follows from the model and the budget."""

import dataclasses

import pytest

from benthic.cache.layout import WINDOW, CacheLayout, plan_layout
from benthic.errors import ConfigError
from benthic.models.config import ModelConfig, Yarn

CONFIG = ModelConfig(
    vocab_size=128, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, head_dim=32, qk_rope_head_dim=8,
    q_lora_rank=32, o_groups=2, o_lora_rank=16, sliding_window=128, compress_ratios=(0, 4, 128, 0), index_n_heads=4,
    index_head_dim=16, index_topk=8, rope_theta=1e4, compress_rope_theta=1.6e5, rope_scaling=Yarn(16.0, 4096),
    max_position_embeddings=8192, moe_intermediate_size=32, n_routed_experts=4, n_shared_experts=1,
    num_experts_per_tok=2, routed_scaling_factor=1.5, num_hash_layers=1, swiglu_limit=10.0,
)  # fmt: skip


def layout(**changes: object) -> CacheLayout:
    arguments = {
        "max_num_seqs": 8, "max_batched_tokens": 256, "max_model_len": None, "cache_bytes": 1 << 30, "entry_bytes": 4,
    }  # fmt: skip
    return plan_layout(CONFIG, **(arguments | changes))  # type: ignore[arg-type]


def test_a_large_budget_holds_every_request_at_full_length_and_no_more() -> None:
    found = layout()
    assert found.max_model_len == 8192
    assert found.num_blocks == {WINDOW: 8 * 4 + 4, 4: 8 * 32 + 8, 128: 8 + 8}
    assert found.num_bytes < 1 << 30


def test_a_small_budget_holds_fewer_full_contexts() -> None:
    full = layout()
    found = layout(cache_bytes=full.num_bytes * 8 // 10)
    assert found.num_bytes <= full.num_bytes * 8 // 10
    assert 32 + 8 <= found.num_blocks[4] < full.num_blocks[4]


def test_a_budget_below_one_context_is_refused_with_the_bytes_it_takes() -> None:
    with pytest.raises(ConfigError, match=r"cache_bytes \(100000\) must be >= \d+ to hold one context of 8192"):
        layout(cache_bytes=100_000, max_model_len=8192)


def test_a_context_beyond_the_models_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_model_len \(9000\) must be <= .* \(8192\)"):
        layout(max_model_len=9000)


def test_the_mtp_block_has_a_window_and_no_compressor() -> None:
    widths = layout().layers
    assert [w.ratio for w in widths] == [0, 4, 128, 0]
    assert [(w.raw, w.index) for w in widths] == [(0, 0), (4 * 32 + 4 * 16, 16), (2 * 32, 0), (0, 0)]


def test_a_model_without_a_window_keeps_what_its_compressors_read() -> None:
    narrow = dataclasses.replace(CONFIG, sliding_window=16)
    found = plan_layout(
        narrow, max_num_seqs=1, max_batched_tokens=64, max_model_len=None, cache_bytes=1 << 30, entry_bytes=4
    )
    assert found.kept_len == 128
