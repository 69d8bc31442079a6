"""Sizes that follow from page, window, ratios and draft length."""

import dataclasses
import subprocess
import sys

import pytest

from benthic.cache.geometry import CacheCapacity, CacheGeometry, geometry
from benthic.cache.layout import LayerCache
from benthic.errors import ConfigError
from benthic.models.config import ModelConfig, Yarn

CONFIG = ModelConfig(
    vocab_size=128, hidden_size=64, num_hidden_layers=3, num_attention_heads=2, head_dim=32, qk_rope_head_dim=8,
    q_lora_rank=32, o_groups=2, o_lora_rank=16, sliding_window=128, compress_ratios=(0, 4, 128, 0), index_n_heads=4,
    index_head_dim=16, index_topk=8, rope_theta=1e4, compress_rope_theta=1.6e5, rope_scaling=Yarn(16.0, 4096),
    max_position_embeddings=8192, moe_intermediate_size=32, n_routed_experts=4, n_shared_experts=1,
    num_experts_per_tok=2, routed_scaling_factor=1.5, num_hash_layers=1, swiglu_limit=10.0,
)  # fmt: skip
WINDOW, CSA, HCA = LayerCache(0, False, 32, 0), LayerCache(4, True, 32, 16), LayerCache(16, False, 32, 0)
TINY = CacheGeometry(page_size=16, window=8, layers=(WINDOW, CSA, HCA, WINDOW), num_main_layers=3)


def test_a_model_gives_main_layers_then_mtp_layers() -> None:
    found = geometry(CONFIG)
    hca = LayerCache(128, False, 32, 0)
    assert found == CacheGeometry(128, 128, (WINDOW, CSA, hca, WINDOW), 3, rope_dim=8)
    assert found.ratios == (4, 128)
    assert [found.entries_per_page(ratio) for ratio in found.ratios] == [32, 1]


def test_raw_rows_hold_values_and_gates_of_every_series() -> None:
    assert [layer.raw for layer in (WINDOW, CSA, HCA)] == [0, 4 * 32 + 4 * 16, 2 * 32]


def test_a_snapshot_holds_the_first_series_of_both_compressors() -> None:
    columns = list(range(CSA.raw))
    picked = [column for part in CSA.snapshot_columns for column in columns[part]]
    values, gates, keys, key_gates = range(0, 32), range(64, 96), range(128, 144), range(160, 176)
    assert picked == [*values, *gates, *keys, *key_gates]
    assert len(picked) == CSA.snapshot
    assert HCA.snapshot == WINDOW.snapshot == 0


@pytest.mark.parametrize(
    ("draft_len", "csa", "hca"), [(0, 7, 127), (1, 8, 128), (3, 10, 130), (5, 12, 132), (7, 14, 134), (9, 16, 136)]
)
def test_the_ring_bound_is_what_brute_force_found(draft_len: int, csa: int, hca: int) -> None:
    found = geometry(CONFIG, max_draft_len=draft_len)
    assert (found.min_ring_len(4), found.min_ring_len(128)) == (csa, hca)


def test_rings_hold_whole_blocks() -> None:
    drafted = dataclasses.replace(TINY, max_draft_len=3)
    assert (TINY.ring_len(4), TINY.ring_len(16)) == (8, 16)
    assert (drafted.ring_len(4), drafted.ring_len(16)) == (12, 32)


def test_a_replay_covers_every_layers_window_and_the_mtp_block_where_it_drafts() -> None:
    assert TINY.replay_len == 3 * 7 + 1
    assert dataclasses.replace(TINY, max_draft_len=2).replay_len == 4 * 7 + 1


@pytest.mark.parametrize(("window", "pages"), [(8, 1), (16, 1), (17, 2), (32, 2)])
def test_a_window_reaches_into_as_many_pages_as_it_covers(window: int, pages: int) -> None:
    assert dataclasses.replace(TINY, window=window).window_pages == pages


def test_lengths_are_counted_in_begun_pages() -> None:
    assert [TINY.num_pages(length) for length in (0, 1, 16, 17)] == [0, 1, 1, 2]


@pytest.mark.parametrize(("change", "message"), [
    ({"page_size": 24}, "page_size is 24; it must be a multiple of every compression ratio, here 16"),
    ({"page_size": 0}, "page_size is 0; it must be >= 4"),
    ({"max_draft_len": -1}, "max_draft_len is -1; it must be >= 0"),
])  # fmt: skip
def test_impossible_sizes_are_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(TINY, **change)


def test_a_capacity_holds_something_of_everything_but_windows() -> None:
    with pytest.raises(AssertionError):
        CacheCapacity(num_pages=0, num_windows=1, num_rows=1, max_len=64)
    assert CacheCapacity(num_pages=8, num_windows=2, num_rows=1, max_len=64).num_window_ids == 3
    assert CacheCapacity(num_pages=8, num_windows=0, num_rows=1, max_len=64).num_window_ids == 0


def test_bookkeeping_imports_no_torch() -> None:
    program = "import sys, benthic.cache.geometry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
