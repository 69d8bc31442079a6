"""Buffers start as zeros, cost memory only when written, and are cleared block by block."""

import pytest
import torch

from benthic.cache.buffers import ALIGNMENT, CacheBuffers
from benthic.cache.layout import BLOCK_SIZE, WINDOW, CacheLayout, LayerWidths

LAYERS = (LayerWidths(0, 8, 0, 0), LayerWidths(4, 8, 48, 4), LayerWidths(128, 8, 16, 0))


def buffers_of(dtype: torch.dtype, num_csa: int = 5) -> CacheBuffers:
    layout = CacheLayout(
        layers=LAYERS, num_blocks={WINDOW: 6, 4: num_csa, 128: 2}, kept_len=128, max_model_len=512, num_bytes=0
    )
    return CacheBuffers(layout, dtype=dtype, device=torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_are_aligned_zeros_of_the_asked_shapes(dtype: torch.dtype) -> None:
    buffers = buffers_of(dtype)
    assert [tuple(t.shape) for t in buffers.kv] == [(7 * 64, 8), (13 * 64, 8), (10 * 64, 8)]
    assert [None if t is None else tuple(t.shape) for t in buffers.raw] == [None, (7 * 64, 48), (7 * 64, 16)]
    assert [None if t is None else tuple(t.shape) for t in buffers.index] == [None, (6 * 64, 4), None]
    for tensor in (*buffers.kv, *buffers.raw, *buffers.index):
        if tensor is not None:
            assert tensor.dtype in (dtype, torch.float32)
            assert tensor.data_ptr() % ALIGNMENT == 0
            assert not tensor.any()


def test_clearing_touches_the_named_blocks_of_every_layer_and_no_other() -> None:
    buffers = buffers_of(torch.float32)
    for tensor in (*buffers.kv, *buffers.raw, *buffers.index):
        if tensor is not None:
            tensor.fill_(float("nan"))
    buffers.clear({WINDOW: [2], 4: [1, 3], 128: []})
    base = buffers.entry_base
    expected = {("kv", 0): {2}, ("kv", 1): {2, base + 1, base + 3}, ("kv", 2): {2}}
    expected |= {("raw", 1): {2}, ("raw", 2): {2}, ("index", 1): {1, 3}}
    for name, tensors in (("kv", buffers.kv), ("raw", buffers.raw), ("index", buffers.index)):
        for layer, tensor in enumerate(tensors):
            if tensor is not None:
                clean = (tensor.view(-1, BLOCK_SIZE, tensor.shape[1]) == 0).flatten(1).all(1)
                assert set(clean.nonzero().flatten().tolist()) == expected[name, layer]


def test_a_large_cache_takes_little_memory_until_it_is_written() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident_bytes()
    buffers = buffers_of(torch.float32, num_csa=200_000)
    assert buffers.kv[1].nbytes > 400_000_000
    assert resident_bytes() - before < 50_000_000
