"""Scores and weighted sums as chains of fused multiply-adds in ascending order, and whether a library agrees.

Shared by the single-row kernels of attention and of the indexer.
"""

from functools import cache
from typing import Any

import numpy as np
import torch

from benthic.kernels.numba_kernel import float32s, kernel, part
from benthic.kernels.numba_math import fma32
from benthic.kernels.sparse_attention.tiles import BLOCK


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
    score_block(queries, keys, turned, scores, np.int64(0))
    if wants_sums:
        for head in range(BLOCK):
            add_scaled(weights[head], keys, sums[head])


@part
def score_block(queries: Any, keys: Any, turned: Any, scores: Any, column: int) -> None:
    """scores[h, column + j] = q_h . k_j for up to 64 keys, all keys of a head side by side.

    With fewer keys the columns past them get finite values without meaning; `turned` [dim, 64] starts finite.
    """
    for i in range(turned.shape[0]):
        across = turned[i]
        for j in range(len(keys)):
            across[j] = keys[j, i]
    for head in range(len(queries)):
        add_scaled(queries[head], turned, scores[head, column : column + BLOCK])


@part
def add_scaled(factors: Any, vectors: Any, total: Any) -> None:
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
