"""Sinkhorn on the CPU: many rows side by side, one in each vector lane, each in the same order of operations.

A block [n*n, lanes] holds one matrix a lane. Rows and columns of the matrices are "lines": n entries of the block,
from a first one on, `step` apart (1 in a row, n in a column).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.hyper_connection.sinkhorn import sinkhorn_recomputing
from benthic.kernels.numba_kernel import float32s, inlined, kernel, part
from benthic.kernels.numba_math import ONE, ZERO, exp32

# Rows that fill the vector units: 32 was 1.8 times as fast as 16 on AVX2 and AVX-512.
SINKHORN_ROWS = 32


def sinkhorn_trainable(comb_logits: Tensor, eps: float, iters: int) -> Tensor:
    """`sinkhorn` by the kernels of this file, both ways; keeps its input only."""
    return sinkhorn_recomputing(comb_logits, eps, iters, sinkhorn_cpu, sinkhorn_vjp_cpu)


def sinkhorn_cpu(comb_logits: Tensor, eps: float, iters: int) -> Tensor:
    """See `sinkhorn`; float32."""
    source = comb_logits.contiguous()
    result = torch.empty(source.shape, dtype=torch.float32)
    _sinkhorn(source.data_ptr(), result.data_ptr(), source.shape[0], source.shape[1], iters, eps)
    return result


def sinkhorn_vjp_cpu(comb_logits: Tensor, grad: Tensor, eps: float, iters: int) -> Tensor:
    """See `sinkhorn_vjp`; float32."""
    source, grad = comb_logits.contiguous(), grad.contiguous()
    result = torch.empty(source.shape, dtype=torch.float32)
    rows, n = source.shape[:2]
    _sinkhorn_vjp(source.data_ptr(), grad.data_ptr(), result.data_ptr(), rows, n, iters, eps)
    return result


@kernel
def _sinkhorn(logits_at: int, result_at: int, rows: int, n: int, iters: int, eps: float) -> None:
    entries = n * n
    logits, result = float32s(logits_at, (rows, entries)), float32s(result_at, (rows, entries))
    block, sums = np.empty((entries, SINKHORN_ROWS), np.float32), np.empty(SINKHORN_ROWS, np.float32)
    for start in range(0, rows, SINKHORN_ROWS):
        count = min(SINKHORN_ROWS, rows - start)
        _read(logits[start : start + count], block)
        sinkhorn_lanes(block, sums, count, n, np.float32(eps), iters)
        _write(block, result[start : start + count])


@part
def sinkhorn_lanes(block: Any, sums: Any, count: int, n: int, eps: float, iters: int) -> None:
    """In place on `block` [n*n, lanes], the first `count` lanes; `sums` [lanes] is scratch."""
    for i in range(n):
        _softmax(block, i * n, n, sums, count, eps)
    for step in range(2 * iters - 1):
        _normalize_all(block, step, n, sums, count, eps)


@kernel
def _sinkhorn_vjp(logits_at: int, grad_at: int, result_at: int, rows: int, n: int, iters: int, eps: float) -> None:
    """Every step's matrices are kept while a block of rows goes forward and back: 80 KB, in the second cache."""
    entries, num_steps = n * n, 2 * iters - 1
    logits, upstream = float32s(logits_at, (rows, entries)), float32s(grad_at, (rows, entries))
    result = float32s(result_at, (rows, entries))
    states = np.empty((num_steps + 2, entries, SINKHORN_ROWS), np.float32)
    sums, dots = np.empty(SINKHORN_ROWS, np.float32), np.empty(SINKHORN_ROWS, np.float32)
    grad = np.empty((entries, SINKHORN_ROWS), np.float32)
    for start in range(0, rows, SINKHORN_ROWS):
        count = min(SINKHORN_ROWS, rows - start)
        _read(logits[start : start + count], states[0])
        _read(upstream[start : start + count], grad)
        for i in range(n):
            _softmax(states[0], i * n, n, sums, count, ZERO)
        for i in range(entries):
            for lane in range(count):
                states[1, i, lane] = states[0, i, lane] + np.float32(eps)
        for step in range(num_steps):
            _copy(states[step + 1], states[step + 2])
            _normalize_all(states[step + 2], step, n, sums, count, np.float32(eps))
        for step in range(num_steps - 1, -1, -1):
            _normalize_all_vjp(states[step + 1], states[step + 2], grad, step, n, sums, dots, count, np.float32(eps))
        for i in range(n):
            _softmax_vjp(states[0], grad, i * n, n, dots, count)
        _write(grad, result[start : start + count])


@part
def _read(matrices: Any, block: Any) -> None:
    for lane in range(len(matrices)):
        for i in range(len(block)):
            block[i, lane] = matrices[lane, i]


@part
def _write(block: Any, matrices: Any) -> None:
    for lane in range(len(matrices)):
        for i in range(len(block)):
            matrices[lane, i] = block[i, lane]


@inlined
def _copy(source: Any, target: Any) -> None:
    """An assignment of arrays takes seconds to compile."""
    for i in range(len(source)):
        for lane in range(source.shape[1]):
            target[i, lane] = source[i, lane]


@part
def _normalize_all(block: Any, step: int, n: int, sums: Any, count: int, eps: float) -> None:
    """Divides every column (even steps) or row (odd ones) by its sum plus eps."""
    for line in range(n):
        first, stride = (line, n) if step % 2 == 0 else (line * n, 1)
        _add(block, first, stride, n, sums, count)
        for lane in range(count):
            sums[lane] = ONE / (sums[lane] + eps)
        for k in range(n):
            entry = block[first + k * stride]
            for lane in range(count):
                entry[lane] *= sums[lane]


@part
def _normalize_all_vjp(
    before: Any, after: Any, grad: Any, step: int, n: int, sums: Any, dots: Any, count: int, eps: float
) -> None:
    """C' = C / S, S = sum C + eps: with h = g / S, dL/dC = h - sum(h C'), in place on `grad`."""
    for line in range(n):
        first, stride = (line, n) if step % 2 == 0 else (line * n, 1)
        _add(before, first, stride, n, sums, count)
        for lane in range(count):
            sums[lane] = ONE / (sums[lane] + eps)
            dots[lane] = ZERO
        for k in range(n):
            g, result = grad[first + k * stride], after[first + k * stride]
            for lane in range(count):
                g[lane] *= sums[lane]
                dots[lane] += g[lane] * result[lane]
        for k in range(n):
            g = grad[first + k * stride]
            for lane in range(count):
                g[lane] -= dots[lane]


@part
def _softmax(block: Any, first: int, n: int, sums: Any, count: int, eps: float) -> None:
    """Softmax of one row of the matrices, plus eps."""
    for lane in range(count):
        sums[lane] = block[first, lane]
    for k in range(1, n):
        entry = block[first + k]
        for lane in range(count):
            sums[lane] = max(sums[lane], entry[lane])
    for k in range(n):
        entry = block[first + k]
        for lane in range(count):
            entry[lane] = exp32(entry[lane] - sums[lane])
    _add(block, first, np.int64(1), n, sums, count)
    for lane in range(count):
        sums[lane] = ONE / sums[lane]
    for k in range(n):
        entry = block[first + k]
        for lane in range(count):
            entry[lane] = entry[lane] * sums[lane] + eps


@part
def _softmax_vjp(probabilities: Any, grad: Any, first: int, n: int, dots: Any, count: int) -> None:
    """p (g - sum(g p)), in place on `grad`."""
    for lane in range(count):
        dots[lane] = ZERO
    for k in range(n):
        g, p = grad[first + k], probabilities[first + k]
        for lane in range(count):
            dots[lane] += g[lane] * p[lane]
    for k in range(n):
        g, p = grad[first + k], probabilities[first + k]
        for lane in range(count):
            g[lane] = p[lane] * (g[lane] - dots[lane])


@inlined
def _add(block: Any, first: int, stride: int, n: int, sums: Any, count: int) -> None:
    for lane in range(count):
        sums[lane] = block[first, lane]
    for k in range(1, n):
        entry = block[first + k * stride]
        for lane in range(count):
            sums[lane] += entry[lane]
