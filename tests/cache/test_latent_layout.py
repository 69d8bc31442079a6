"""Caches of V2, V3 and V3.2: an entry a token, no windows, and every page boundary a place to go on from."""

import dataclasses

import pytest
import torch

from benthic.cache.budget import Budget, CacheUse, least_capacity, plan_budget, unit_bytes, wanted_capacity
from benthic.cache.geometry import CacheCapacity, CacheGeometry, geometry
from benthic.cache.layout import LayerCache
from benthic.cache.pools import CachePools
from benthic.cache.retention import POLICIES
from benthic.cache.storage import key_storage
from benthic.cache.work import CacheWork, Copy
from benthic.errors import ConfigError
from benthic.models.released import V2, V2_LITE, V3, V31, V32
from tests.cache.small_cache import advance, begin, serve, small_cache

CPU = torch.device("cpu")
RELEASED = {"V2": V2, "V2-Lite": V2_LITE, "V3": V3, "V3.1": V31, "V3.2": V32}
V32_LAYER = LayerCache(1, False, 24, 8)
TINY = CacheGeometry(16, 0, (V32_LAYER,) * 3, 2, rope_dim=8, official_form="v3.2")
USE = CacheUse(max_num_seqs=4, max_batched_tokens=256, max_len=1024, retention_interval=64)


def token_bytes(found: CacheGeometry, storage: str = "wide") -> float:
    keys = key_storage("official" if storage == "official" else "wide", found, torch.bfloat16, "quantized")
    return unit_bytes(found, keys).page / found.page_size


@pytest.mark.parametrize(("name", "layers", "index"), [
    ("V2", 60, 0), ("V2-Lite", 27, 0), ("V3", 62, 0), ("V3.1", 62, 0), ("V3.2", 62, 128),
])  # fmt: skip
def test_a_token_leaves_576_numbers_a_layer_and_in_v32_an_indexer_key(name: str, layers: int, index: int) -> None:
    found = geometry(RELEASED[name])
    assert found.layers == (LayerCache(1, False, 576, index),) * layers
    assert (found.window, found.window_pages, found.replay_len, found.rope_dim) == (0, 0, 0, 64)
    assert token_bytes(found) == layers * (576 + index) * 2
    units = unit_bytes(found, key_storage("wide", found, torch.bfloat16, "plain"))
    assert (units.window, units.row) == (0, 0)


def test_the_official_format_of_v32_takes_656_and_132_bytes_a_token_and_layer() -> None:
    assert token_bytes(geometry(V32), "official") == 62 * (656 + 132)


@pytest.mark.parametrize("name", ["V2", "V2-Lite", "V3", "V3.1"])
def test_a_model_that_rounds_no_entries_has_no_official_format(name: str) -> None:
    with pytest.raises(ConfigError, match=r"cache_storage is 'official' .* take cache_storage 'wide'"):
        token_bytes(geometry(RELEASED[name]), "official")


def test_scales_that_are_no_powers_of_two_have_no_official_format() -> None:
    assert geometry(dataclasses.replace(V32, scale_dtype="fp32")).official_form is None


def test_only_layers_of_ratio_one_do_without_a_window() -> None:
    for layer in (LayerCache(0, False, 24, 0), LayerCache(4, True, 24, 8), LayerCache(128, False, 24, 0)):
        with pytest.raises(AssertionError):
            CacheGeometry(128, 0, (V32_LAYER, layer), 1)


@pytest.mark.parametrize("page_size", [1, 3, 16, 100])
def test_pages_may_have_any_size(page_size: int) -> None:
    assert dataclasses.replace(TINY, page_size=page_size).entries_per_page(1) == page_size


@pytest.mark.parametrize("storage", ["wide", "official"])
def test_pools_hold_entries_and_keys_of_all_pages_and_the_null_page_and_nothing_else(storage: str) -> None:
    form = "official" if storage == "official" else "wide"
    pools = CachePools(
        TINY, CacheCapacity(5, 0, 3, 80), dtype=torch.bfloat16, device=CPU, storage=form, numerics="quantized"
    )
    assert pools.entry_base == 0
    assert [len(tensor) for tensor in (*pools.kv, *pools.index) if tensor is not None] == [6 * 16] * 6
    assert pools.rings == pools.snapshots == [None] * 3
    unit = unit_bytes(TINY, pools.storage)
    assert pools.num_bytes == 6 * unit.page


def test_fresh_pages_are_cleared_and_forks_copy_their_last_page() -> None:
    pools = CachePools(TINY, CacheCapacity(5, 0, 3, 80), dtype=torch.float32, device=CPU)
    for tensor in (*pools.kv, *pools.index):
        assert tensor is not None
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + 1)
    pools.apply(CacheWork((2, 4), (), (1,), (), (Copy(1, 4),), (), (Copy(0, 1),)))
    for tensor in (*pools.kv, *pools.index):
        assert tensor is not None
        pages = tensor.view(6, -1)
        assert not pages[2].any() and torch.equal(pages[4], pages[1])
        assert pages[[0, 1, 3, 5]].all()


def test_a_cache_of_no_windows_wants_windows_of_none() -> None:
    with pytest.raises(AssertionError):
        CachePools(TINY, CacheCapacity(5, 2, 3, 80), dtype=torch.float32, device=CPU)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_boundary_can_be_gone_on_from_whatever_the_retention(policy: str) -> None:
    cache, tokens = small_cache(window=0, policy=policy), list(range(200))
    serve(cache, tokens[:100], tokens[100:])
    for shared in range(0, 200):
        asked = [*tokens[:shared], 999, 998]
        reused = shared // 16 * 16
        found = cache.match(asked, ("weights", 0, ""))
        assert (found.usable_len, found.compressed_len) == (reused, reused)
    assert cache.stats().windows.capacity == cache.stats().num_checkpoints == 0


def test_a_prompt_that_is_cached_whole_computes_its_last_token() -> None:
    cache, tokens = small_cache(window=0), list(range(64))
    serve(cache, tokens)
    row = begin(cache, tokens)
    assert row.match == (48, 48, "whole prompt") and (row.start_len, row.stored_len, row.exact_len) == (48, 48, 0)
    assert begin(cache, [*tokens, 1]).start_len == 64


def test_what_a_row_has_written_stays_when_it_slides_on() -> None:
    """Nothing is freed while a row lives, and all of it is evictable afterwards."""
    cache, tokens = small_cache(window=0, num_pages=6), list(range(96))
    row = begin(cache, tokens[:1])
    advance(cache, row, tokens, 96)
    assert cache.room(row, 97) == 96 and cache.available_pages == 0
    cache.close(row, finished=False)
    assert cache.available_pages == 6
    assert cache.match(tokens, ("weights", 0, "")).usable_len == 80
    other = begin(cache, [999] * 40)
    advance(cache, other, [999] * 40, 40)
    assert cache.match(tokens, ("weights", 0, "")).usable_len == 48, "leaves are evicted first"


def test_the_longest_sequence_is_bounded_by_pages_alone() -> None:
    assert small_cache(window=0, num_pages=7).largest_len == 7 * 16
    assert small_cache(window=0, max_len=30).largest_len == 30


def test_a_budget_buys_pages_and_no_windows() -> None:
    least, wanted = least_capacity(TINY, USE), wanted_capacity(TINY, USE)
    assert (least.num_windows, wanted.num_windows) == (0, 0)
    assert (least.num_pages, wanted.num_pages) == (64 + 4, 2 * 4 * 64 + 4)
    found = budget(cache_bytes=500_000)
    assert least.num_pages < found.capacity.num_pages < wanted.num_pages
    assert 490_000 < found.pool_bytes <= 500_000
    pools = CachePools(TINY, found.capacity, dtype=torch.float32, device=CPU)
    assert found.pool_bytes == pools.num_bytes + 4 * 64 * 16


def test_the_account_leaves_out_what_there_is_not() -> None:
    lines = budget().lines()
    assert [line.split()[0] for line in lines] == ["weights", "workspace", "pages", "tables", "left"]
    assert lines[3].endswith("and the null page")


def test_too_little_memory_blames_no_windows() -> None:
    message = (
        r"cache_bytes \(1000\) must be >= \d+ to hold one context of 1024 tokens beside a page of 4 requests each; "
        r"raise it, or lower max_model_len or max_num_seqs$"
    )
    with pytest.raises(ConfigError, match=message):
        budget(cache_bytes=1000)


def budget(cache_bytes: int | None = None) -> Budget:
    unit = unit_bytes(TINY, key_storage("wide", TINY, torch.float32, "plain"))
    return plan_budget(TINY, USE, unit, available_bytes=1 << 30, cache_bytes=cache_bytes)
