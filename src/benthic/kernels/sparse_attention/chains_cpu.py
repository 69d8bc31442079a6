"""Scores and weighted sums as chains of fused multiply-adds in ascending order, and whether a library agrees.

Shared by the single-row kernels of attention and of the indexer. Libraries cut long sums into runs and add the runs'
results in order; `chain_len` finds out how long the runs are.
"""

from functools import cache
from typing import Any

import numpy as np
import torch

from benthic.kernels.numba_kernel import float32s, inlined, kernel, part
from benthic.kernels.numba_math import fma32
from benthic.kernels.sparse_attention.tiles import BLOCK

HEADS = 4
"""Heads that go over the keys together, so that a key is loaded once for all of them."""

FIXED_RUNS = (384, 256, 192, 128)
"""Lengths at which libraries cut, beside none and halves."""


@cache
def chain_len(dim: int, threads: int, value_dim: int | None = None) -> int:
    """The length of the runs with which chains have the bits of products of many rows; 0 if there is none.

    Args:
        dim: width of queries and keys.
        threads: torch's thread count, which keys the answer.
        value_dim: width of the values, the first numbers of the keys; None for all of them.
    """
    value_dim = dim if value_dim is None else value_dim
    generator = torch.Generator().manual_seed(dim)
    queries = torch.randn(1, BLOCK, dim, generator=generator)
    keys = torch.randn(1, 3 * BLOCK, dim, generator=generator)
    weights = torch.rand(1, BLOCK, BLOCK, generator=generator)
    scores = torch.bmm(queries, keys.transpose(1, 2))[0]
    sums = torch.bmm(weights, keys[:, :BLOCK, :value_dim])[0]
    for run in dict.fromkeys((dim, -(-dim // 2), *(run for run in FIXED_RUNS if run < dim))):
        ours, our_sums = torch.empty(BLOCK, 3 * BLOCK), torch.empty(BLOCK, value_dim)
        _try(
            queries.data_ptr(),
            keys.data_ptr(),
            weights.data_ptr(),
            ours.data_ptr(),
            our_sums.data_ptr(),
            dim,
            value_dim,
            run,
        )
        if not torch.equal(our_sums, sums):
            return 0
        if torch.equal(ours, scores):
            return run
    return 0


@kernel
def _try(
    queries_at: int, keys_at: int, weights_at: int, scores_at: int, sums_at: int, dim: int, value_dim: int, run: int
) -> None:
    """64 queries (as heads) against three blocks: scores [64, 192]; weighted sums [64, value_dim] of the first."""
    queries, keys = float32s(queries_at, (BLOCK, dim)), float32s(keys_at, (3 * BLOCK, dim))
    weights, scores = float32s(weights_at, (BLOCK, BLOCK)), float32s(scores_at, (BLOCK, 3 * BLOCK))
    sums, values = float32s(sums_at, (BLOCK, value_dim)), float32s(keys_at, (3 * BLOCK * dim,))
    turned, totals = np.zeros(dim * BLOCK, np.float32), np.empty(HEADS * BLOCK, np.float32)
    for column in range(0, 3 * BLOCK, BLOCK):
        score_block(queries, keys[column : column + BLOCK], turned, totals, scores, column, run)
    for head in range(0, BLOCK, HEADS):
        for first in range(0, value_dim, BLOCK):
            width = min(BLOCK, value_dim - first)
            clear(totals)
            add_chains(four_rows(weights, head, np.int64(0), np.int64(BLOCK)), values[first:], dim, width, totals)
            for offset in range(HEADS):
                copy(totals[offset * BLOCK : offset * BLOCK + width], sums[head + offset, first : first + width])


@part
def score_block(queries: Any, keys: Any, turned: Any, totals: Any, scores: Any, column: int, run: int) -> None:
    """scores[h, column + j] = q_h . k_j for up to 64 keys, all keys of a head side by side, in runs of `run` terms.

    With fewer keys the columns past them get finite values without meaning. Scratch: `turned` [dim * 64], which
    starts finite, and `totals` [4 * 64].
    """
    heads, dim = queries.shape
    for i in range(dim):
        across = turned[i * BLOCK : (i + 1) * BLOCK]
        for j in range(len(keys)):
            across[j] = keys[j, i]
    for head in range(0, heads, HEADS):
        for first in range(0, dim, run):
            end = min(first + run, dim)
            clear(totals)
            rows = four_rows(queries, head, first, end)
            add_chains(rows, turned[first * BLOCK :], np.int64(BLOCK), np.int64(BLOCK), totals)
            for offset in range(min(HEADS, heads - head)):
                found = totals[offset * BLOCK : (offset + 1) * BLOCK]
                target = scores[head + offset, column : column + BLOCK]
                if first == 0:
                    copy(found, target)
                else:
                    add(found, target)


@part
def add_chains(factors: Any, vectors: Any, stride: int, width: int, totals: Any) -> None:
    """totals[64 h + i] += sum_j factors_h[j] vectors[stride * j + i] for four heads and i < width <= 64, j ascending.

    The totals of the heads lie side by side at known distances, and four terms go by at a time: that is what lets a
    compiler see four independent sums for each value that it loads.
    """
    f0, f1, f2, f3 = factors
    whole = f0.size // 4 * 4
    for j in range(0, whole, 4):
        _add_four(
            (f0[j : j + 4], f1[j : j + 4], f2[j : j + 4], f3[j : j + 4]), vectors[j * stride :], stride, width, totals
        )
    for j in range(whole, f0.size):
        a, b, c, d = f0[j], f1[j], f2[j], f3[j]
        vector = vectors[j * stride :]
        for i in range(width):
            value = vector[i]
            totals[i] = fma32(a, value, totals[i])
            totals[i + BLOCK] = fma32(b, value, totals[i + BLOCK])
            totals[i + 2 * BLOCK] = fma32(c, value, totals[i + 2 * BLOCK])
            totals[i + 3 * BLOCK] = fma32(d, value, totals[i + 3 * BLOCK])


@inlined
def _add_four(factors: Any, vectors: Any, stride: int, width: int, totals: Any) -> None:
    f0, f1, f2, f3 = factors
    a0, a1, a2, a3 = f0[0], f0[1], f0[2], f0[3]
    b0, b1, b2, b3 = f1[0], f1[1], f1[2], f1[3]
    c0, c1, c2, c3 = f2[0], f2[1], f2[2], f2[3]
    d0, d1, d2, d3 = f3[0], f3[1], f3[2], f3[3]
    v0, v1, v2, v3 = vectors, vectors[stride:], vectors[2 * stride :], vectors[3 * stride :]
    for i in range(width):
        x0, x1, x2, x3 = v0[i], v1[i], v2[i], v3[i]
        j, k, m = i + BLOCK, i + 2 * BLOCK, i + 3 * BLOCK
        totals[i] = fma32(a3, x3, fma32(a2, x2, fma32(a1, x1, fma32(a0, x0, totals[i]))))
        totals[j] = fma32(b3, x3, fma32(b2, x2, fma32(b1, x1, fma32(b0, x0, totals[j]))))
        totals[k] = fma32(c3, x3, fma32(c2, x2, fma32(c1, x1, fma32(c0, x0, totals[k]))))
        totals[m] = fma32(d3, x3, fma32(d2, x2, fma32(d1, x1, fma32(d0, x0, totals[m]))))


@inlined
def four_rows(rows: Any, first: int, begin: int, end: int) -> Any:
    """Columns begin .. end - 1 of four rows from `first` on; the last row again where there are fewer."""
    last = len(rows) - 1
    return (
        rows[first, begin:end],
        rows[min(first + 1, last), begin:end],
        rows[min(first + 2, last), begin:end],
        rows[min(first + 3, last), begin:end],
    )


@inlined
def clear(values: Any) -> None:
    """Sets all to zero."""
    for i in range(values.size):
        values[i] = 0


@inlined
def copy(source: Any, target: Any) -> None:
    """An assignment of arrays would look for overlaps first."""
    for i in range(target.size):
        target[i] = source[i]


@inlined
def add(source: Any, target: Any) -> None:
    """target += source."""
    for i in range(target.size):
        target[i] += source[i]
