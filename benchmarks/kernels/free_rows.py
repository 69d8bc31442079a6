"""Index scores, boundaries and compressors in orders that follow the number of rows. See bench_exactness_cost.

Index scores: the heads of a pair in two halves, each a row of its own to the same kernel, added by a second launch.
Boundary: Triton's kernels with other leaves and groups of leaves. Compressor: the same kernel taking other numbers of
rows at a time; and for blocks of 128, a pool of parts that no norm and no store follows, a lower bound.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import triton
import triton.language as tl
from bench_entry_write_cuda import _compression
from bench_hyper_boundary_cuda import _inputs
from cuda_timing import Calls, Case, num_sets
from torch import Tensor

from benthic.kernels.compress_kv.kernel import ROWS_AT_ONCE, add_rows
from benthic.kernels.entry_write import compress_entries
from benthic.kernels.hyper_boundary import hyper_boundary
from benthic.kernels.hyper_boundary import kernel as boundary
from benthic.kernels.index_scores import index_scores
from benthic.kernels.index_scores.cases import device_keys, device_queries, device_tiles
from benthic.kernels.kv_storage import PackedIndex
from benthic.kernels.sparse_attention.tiles import KeyTiles

HEADS, DIM, PAGE = 64, 128, 64
DECODE, PREFILL = (1, 32, 128), (2048, 8192)
DECODE_ENTRIES, PREFILL_ROWS = 8192, 8192
BOUNDARY_ROWS = (1, 8, 32, 128, 4096)
LEAVES = {"few": ((128, 16), (256, 16)), "many": ((64, 8), (64, 4))}
"""(columns of a leaf, groups) that are tried up to 256 rows, and beyond."""
FED = ((4, 32), (4, 4096), (4, 32768), (128, 32), (128, 4096), (128, 32768))
"""(ratio, rows): 32 single rows, or one sequence from its start."""
POOL_PARTS, POOL_COLUMNS = 4, 128


def index_cases() -> Iterator[Case]:
    """Decode over 32K tokens, then prefill."""
    for rows in DECODE:
        yield _index(f"index decode {rows} x 32768", rows, 1, DECODE_ENTRIES)
    for entries in PREFILL:
        yield _index(f"index prefill {PREFILL_ROWS} x {entries}", PREFILL_ROWS, 64, entries)


def _index(name: str, rows: int, per_tile: int, entries: int) -> Case:
    sequences = rows if per_tile == 1 else 1
    query, gamma = device_queries(rows, "v4")
    sets = num_sets(sequences * entries * 68, 16)
    keys = device_keys(sets * sequences * entries, "v4")
    tables = torch.randperm(sets * sequences * entries // PAGE, device="cuda").view(sets, sequences, -1)
    exact, free = [], []
    for table in tables:
        tiles = device_tiles(rows, per_tile, entries, table, PAGE)
        twice = table.repeat_interleave(2, 0) if sequences > 1 else table
        halves = device_tiles(2 * rows, 2 if rows == 1 else per_tile, entries, twice, PAGE)
        exact.append(partial(_scores, query, gamma, keys, tiles, rows))
        free.append(partial(_halves, query, gamma, keys, halves, rows))
    calls: dict[str, Calls] = {"exact": exact, "free halves of heads": free}
    return Case(name, calls, sequences * entries * 68 + 4 * rows * entries, 2 * rows * entries * HEADS * DIM)


def _scores(query: Tensor, gamma: Tensor, keys: PackedIndex, tiles: KeyTiles, rows: int) -> Tensor:
    return index_scores(query, gamma, keys, tiles, (0, tiles.num_entry_blocks)).view(rows, -1)


def _halves(query: Tensor, gamma: Tensor, keys: PackedIndex, tiles: KeyTiles, rows: int) -> Tensor:
    shape = (2 * rows, HEADS // 2)
    scores = index_scores(query.view(*shape, DIM), gamma.view(shape), keys, tiles, (0, tiles.num_entry_blocks))
    first, second = scores.view(rows, 2, -1).unbind(1)
    return first + second


def boundary_cases() -> Iterator[Case]:
    """Flash's width."""
    with torch.device("cuda"):
        for rows in BOUNDARY_ROWS:
            moved = rows * 4096 * (2 + 8 + 8 + 2 + 1) + 24 * 4 * 4096 * 4
            sets = [_inputs(rows, 4096) for _ in range(num_sets(moved, 24))]
            calls: dict[str, Calls] = {
                "exact": [partial(_cross, given, "cuda") for given in sets],
                "exact, Triton": [partial(_cross, given, "triton") for given in sets],
            }
            for leaf, groups in LEAVES["few" if rows <= boundary.FEW_ROWS else "many"]:
                free = [partial(_free_cross, given, leaf, groups) for given in sets]
                calls[f"free {groups} of {leaf}"] = free
            yield Case(f"boundary D 4096 rows {rows}", calls, moved, 2 * rows * 24 * 4 * 4096)


def _cross(given: dict[str, Any], impl: Any) -> Tensor:
    return hyper_boundary(**given, linear_scale="ue8m0", impl=impl)[1]


def _free_cross(given: dict[str, Any], leaf: int, groups: int) -> Tensor:
    with patch.object(boundary, "LEAF", leaf), patch.object(boundary, "GROUPS", groups):
        return _cross(given, "triton")


def compressor_cases() -> Iterator[Case]:
    """Entries of both ratios; nothing is compared of them, for they are written and not returned."""
    with torch.device("cuda"):
        for ratio, rows in FED:
            is_decode = rows == 32
            made = [_compression(ratio, rows, is_decode) for _ in range(8 if is_decode else 1)]
            width = made[0][0]["raw"].shape[1]
            moved = rows * width * 4
            calls: dict[str, Calls] = {"exact": [partial(compress_entries, **given) for given, _ in made]}
            for at_once in (2, 4) if ratio == 4 else (16, 64):
                calls[f"free {at_once} at once"] = [partial(_free_compress, given, ratio, at_once) for given, _ in made]
            if ratio == 128 and not is_decode:
                ape = torch.randn(ratio, 512)
                calls["free parts, pooled only"] = [partial(_pool_in_parts, given["raw"], ape) for given, _ in made]
            yield Case(f"compress {ratio} rows {rows}", calls, moved)


def _free_compress(given: dict[str, Any], ratio: int, at_once: int) -> None:
    with patch.dict(ROWS_AT_ONCE, {ratio: at_once}):
        compress_entries(**given, impl="triton")


@triton.jit
def _pool_part(
    raw, ape, sums, stride, dim: tl.constexpr, length: tl.constexpr, at_once: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    """One part of a block's rows: the maximum, the weight and the weighted sum of some of its channels."""
    block, part, parts = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(2) * columns + tl.arange(0, columns)
    top = tl.full((columns,), float("-inf"), tl.float32)
    total, mixed = tl.zeros((columns,), tl.float32), tl.zeros((columns,), tl.float32)
    for start in range(0, length, at_once):
        number = part * length + start + tl.arange(0, at_once)
        place = raw + (block * parts * length + number)[:, None] * stride + column[None, :]
        gate = tl.load(place + dim) + tl.load(ape + number[:, None] * dim + column[None, :])
        top, total, mixed = add_rows(tl.load(place), gate, top, total, mixed)
    target = sums + (block * parts + part) * 3 * dim + column
    tl.store(target, top)
    tl.store(target + dim, total)
    tl.store(target + 2 * dim, mixed)


@triton.jit
def _join_parts(sums, pooled, dim: tl.constexpr, parts: tl.constexpr):
    block, column = tl.program_id(0).to(tl.int64), tl.arange(0, dim)
    part = sums + (block * parts + tl.arange(0, parts))[:, None] * 3 * dim + column[None, :]
    top = tl.load(part)
    fade = tl.exp(top - tl.max(top, 0)[None, :])
    total, mixed = tl.sum(fade * tl.load(part + dim), 0), tl.sum(fade * tl.load(part + 2 * dim), 0)
    tl.store(pooled + block * dim + column, mixed / total)


def _pool_in_parts(raw: Tensor, ape: Tensor) -> Tensor:
    """Blocks of 128 rows [R, 1024] (512 values, 512 gates) pooled to [R / 128, 512]."""
    blocks, dim, length = len(raw) // 128, raw.shape[1] // 2, 128 // POOL_PARTS
    sums, pooled = raw.new_empty((blocks, POOL_PARTS, 3, dim)), raw.new_empty((blocks, dim))
    grid = (blocks, POOL_PARTS, dim // POOL_COLUMNS)
    _pool_part[grid](raw, ape, sums, raw.stride(0), dim, length, 16, POOL_COLUMNS, num_warps=4)
    _join_parts[(blocks,)](sums, pooled, dim, POOL_PARTS, num_warps=4)
    return pooled
