"""Attention of single rows (decode) on the CPU: key blocks are read where they lie, without copies or products.

Every score and every weighted sum is one chain of fused multiply-adds in ascending order of its terms, which is how
a library forms them for tiles of many rows. `chains_agree` checks that on this machine; where it does not hold, decode
takes the library's products too.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from benthic.kernels.numba_kernel import bytes8, float32s, int64s, kernel
from benthic.kernels.numba_math import LANES, ZERO, exp32, fma32
from benthic.kernels.sparse_attention.cpu import add_bias, exponentiate, hide
from benthic.kernels.sparse_attention.plan import BLOCK, WINDOW_BLOCKS
from benthic.kernels.sparse_attention.tiles import KeyTiles


def attend_single_rows(
    query: Tensor, keys: Tensor, sink: Tensor, tiles: KeyTiles, scale: float, keep: Tensor | None
) -> Tensor:
    """Output [n, H, d] of one group of one-row tiles; all float32. See `sparse_attention`."""
    _, heads, dim = query.shape
    num_tiles, num_blocks = tiles.blocks.shape
    query, keys, sink = query.contiguous(), keys.contiguous(), sink.contiguous()
    kept = None if keep is None else keep.contiguous()
    output = torch.empty((num_tiles, heads, dim), dtype=torch.float32)
    _attend(
        query.data_ptr(),
        keys.data_ptr(),
        tiles.queries.data_ptr(),
        tiles.blocks.data_ptr(),
        tiles.bias.data_ptr(),
        0 if kept is None else kept.data_ptr(),
        sink.data_ptr(),
        output.data_ptr(),
        num_tiles,
        heads,
        dim,
        num_blocks,
        scale,
    )
    return output


@cache
def chains_agree(dim: int, threads: int) -> bool:
    """True if products of many rows have the bits of this file's chains; `threads` keys the answer."""
    generator = torch.Generator().manual_seed(dim)
    queries = torch.randn(1, BLOCK, dim, generator=generator)
    keys = torch.randn(3 * BLOCK, dim, generator=generator)
    weights = torch.rand(1, BLOCK, BLOCK, generator=generator)
    scores, sums = torch.bmm(queries, keys.t()[None]), torch.bmm(weights, keys[None, :BLOCK])
    ours, our_sums = torch.empty(BLOCK, 3 * BLOCK), torch.empty(BLOCK, dim)
    for block in range(3):
        part = torch.empty(BLOCK, BLOCK)
        at = keys[block * BLOCK :].data_ptr()
        _chains(queries.data_ptr(), at, weights.data_ptr(), part.data_ptr(), our_sums.data_ptr(), dim, block == 0)
        ours[:, block * BLOCK : (block + 1) * BLOCK] = part
    return torch.equal(ours, scores[0]) and torch.equal(our_sums, sums[0])


@kernel
def _chains(
    queries_at: int, keys_at: int, weights_at: int, scores_at: int, sums_at: int, dim: int, wants_sums: bool
) -> None:
    """64 queries (as heads) against one block: scores [64, 64] and, if wanted, weighted sums [64, dim]."""
    queries, keys = float32s(queries_at, (BLOCK, dim)), float32s(keys_at, (BLOCK, dim))
    weights, scores = float32s(weights_at, (BLOCK, BLOCK)), float32s(scores_at, (BLOCK, BLOCK))
    sums, turned = float32s(sums_at, (BLOCK, dim)), np.empty((dim, BLOCK), np.float32)
    _score_block(queries, keys, turned, scores, 0)
    if wants_sums:
        for head in range(BLOCK):
            _add_scaled(weights[head], keys, sums[head])


@kernel
def _attend(
    query_at: int,
    keys_at: int,
    queries_at: int,
    blocks_at: int,
    bias_at: int,
    keep_at: int,
    sink_at: int,
    output_at: int,
    num_tiles: int,
    heads: int,
    dim: int,
    num_blocks: int,
    scale: float,
) -> None:
    width = num_blocks * BLOCK
    entries = width - WINDOW_BLOCKS * BLOCK
    rows, blocks = int64s(queries_at, (num_tiles,)), int64s(blocks_at, (num_tiles, num_blocks))
    bias, sink = float32s(bias_at, (num_tiles, width)), float32s(sink_at, (heads,))
    output = float32s(output_at, (num_tiles, heads, dim))
    row_bias, lanes = np.empty(width, np.float32), np.empty(LANES, np.float32)
    seen, sums = np.empty(num_blocks, np.bool_), np.empty(num_blocks, np.float32)
    scores, weights = np.empty((heads, width), np.float32), np.empty((num_blocks, heads, BLOCK), np.float32)
    turned, parts = np.empty((dim, BLOCK), np.float32), np.empty((4, dim), np.float32)
    for tile in range(num_tiles):
        row_bias[:] = bias[tile]
        if keep_at:
            hide(row_bias[WINDOW_BLOCKS * BLOCK :], bytes8(keep_at + tile * entries, (entries,)))
        queries = float32s(query_at + 4 * rows[tile] * heads * dim, (heads, dim))
        for block in range(num_blocks):
            seen[block] = (row_bias[block * BLOCK : (block + 1) * BLOCK] == 0).any()
            if seen[block]:
                _score_block(queries, _block(keys_at, blocks[tile, block], dim), turned, scores, block * BLOCK)
        for head in range(heads):
            row, target = scores[head], output[tile, head]
            top = add_bias(row, row_bias, seen, np.float32(scale), sink[head], lanes)
            exponentiate(row, row_bias, seen, top, weights, head, sums, lanes)
            total = ZERO
            target[:] = 0
            for first in range(0, num_blocks, 4):
                total += (sums[first] + sums[first + 1]) + (sums[first + 2] + sums[first + 3])
                if not (seen[first] or seen[first + 1] or seen[first + 2] or seen[first + 3]):
                    continue
                for k in range(4):
                    parts[k] = 0
                    if seen[first + k]:
                        _add_scaled(weights[first + k, head], _block(keys_at, blocks[tile, first + k], dim), parts[k])
                _fold_four(parts, target)
            divisor = total + exp32(sink[head] - top)
            for i in range(dim):
                target[i] /= divisor


@njit(inline="always")
def _block(keys_at: int, block: int, dim: int) -> Any:
    return float32s(keys_at + 4 * block * BLOCK * dim, (BLOCK, dim))


@njit(inline="always")
def _fold_four(parts: Any, target: Any) -> None:
    a, b, c, d = parts[0], parts[1], parts[2], parts[3]
    for i in range(target.size):
        target[i] += (a[i] + b[i]) + (c[i] + d[i])


@kernel
def _score_block(queries: Any, keys: Any, turned: Any, scores: Any, column: int) -> None:
    """scores[h, column + j] = q_h . k_j for a block of 64 keys, all keys of a head side by side."""
    for i in range(turned.shape[0]):
        across = turned[i]
        for j in range(BLOCK):
            across[j] = keys[j, i]
    for head in range(len(queries)):
        _add_scaled(queries[head], turned, scores[head, column : column + BLOCK])


@kernel
def _add_scaled(factors: Any, vectors: Any, total: Any) -> None:
    """total = sum_j factors_j vectors_j, j ascending, from zero; four at a time for fewer loads of the sums."""
    total[:] = 0
    whole = factors.size // 4 * 4
    for j in range(0, whole, 4):
        f0, f1, f2, f3 = factors[j], factors[j + 1], factors[j + 2], factors[j + 3]
        v0, v1, v2, v3 = vectors[j], vectors[j + 1], vectors[j + 2], vectors[j + 3]
        for i in range(total.size):
            total[i] = fma32(f3, v3[i], fma32(f2, v2[i], fma32(f1, v1[i], fma32(f0, v0[i], total[i]))))
    for j in range(whole, factors.size):
        factor, vector = factors[j], vectors[j]
        for i in range(total.size):
            total[i] = fma32(factor, vector[i], total[i])
