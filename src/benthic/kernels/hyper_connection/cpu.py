"""mHC on the CPU: everything but the projection in one call a site."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit
from torch import Tensor

from benthic.kernels.hyper_connection.reference import HyperMix
from benthic.kernels.hyper_connection.sinkhorn_cpu import SINKHORN_ROWS, sinkhorn_lanes
from benthic.kernels.numba_kernel import float32s, kernel
from benthic.kernels.numba_math import LANES, ONE, sigmoid32, sum_squares
from benthic.kernels.precision import wide


def hyper_pre_cpu(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, iters: int, norm_eps: float
) -> HyperMix:
    """See `hyper_pre`. The product is the library's; the rest of a row is one loop."""
    rows, num_streams, size = streams.shape
    x, scale, base = wide(streams).contiguous(), wide(scale).contiguous(), wide(base).contiguous()
    projected = F.linear(x.view(rows, -1), wide(fn))
    mixed = torch.empty((rows, size), dtype=torch.float32)
    post = torch.empty((rows, num_streams), dtype=torch.float32)
    comb = torch.empty((rows, num_streams, num_streams), dtype=torch.float32)
    _pre(
        x.data_ptr(),
        projected.data_ptr(),
        scale.data_ptr(),
        base.data_ptr(),
        mixed.data_ptr(),
        post.data_ptr(),
        comb.data_ptr(),
        rows,
        num_streams,
        size,
        iters,
        eps,
        norm_eps,
    )
    return HyperMix(mixed if streams.dtype == torch.float32 else mixed.to(streams.dtype), post, comb)


def hyper_head_cpu(streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, norm_eps: float) -> Tensor:
    """See `hyper_head`."""
    rows, num_streams, size = streams.shape
    x, scale, base = wide(streams).contiguous(), wide(scale).contiguous(), wide(base).contiguous()
    projected = F.linear(x.view(rows, -1), wide(fn))
    mixed = torch.empty((rows, size), dtype=torch.float32)
    _head(
        x.data_ptr(),
        projected.data_ptr(),
        scale.data_ptr(),
        base.data_ptr(),
        mixed.data_ptr(),
        rows,
        num_streams,
        size,
        eps,
        norm_eps,
    )
    return mixed if streams.dtype == torch.float32 else mixed.to(streams.dtype)


def hyper_post_cpu(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """See `hyper_post`."""
    rows, num_streams, size = streams.shape
    y, x, post, comb = wide(output).contiguous(), wide(streams).contiguous(), post.contiguous(), comb.contiguous()
    result = torch.empty(streams.shape, dtype=torch.float32)
    _post(
        y.data_ptr(),
        x.data_ptr(),
        post.data_ptr(),
        comb.data_ptr(),
        result.data_ptr(),
        rows,
        num_streams,
        size,
    )
    return result if streams.dtype == torch.float32 else result.to(streams.dtype)


@kernel
def _pre(
    x_at: int,
    projected_at: int,
    scale_at: int,
    base_at: int,
    mixed_at: int,
    post_at: int,
    comb_at: int,
    rows: int,
    num_streams: int,
    size: int,
    iters: int,
    eps: float,
    norm_eps: float,
) -> None:
    n, entries = num_streams, num_streams * num_streams
    x, mixed = float32s(x_at, (rows, n, size)), float32s(mixed_at, (rows, size))
    projected = float32s(projected_at, (rows, 2 * n + entries))
    post, comb = float32s(post_at, (rows, n)), float32s(comb_at, (rows, entries))
    scale, base = float32s(scale_at, (3,)), float32s(base_at, (2 * n + entries,))
    lanes, pre = np.empty(LANES, np.float32), np.empty(n, np.float32)
    block, sums = np.empty((entries, SINKHORN_ROWS), np.float32), np.empty(SINKHORN_ROWS, np.float32)
    for start in range(0, rows, SINKHORN_ROWS):
        count = min(SINKHORN_ROWS, rows - start)
        for lane in range(count):
            row = start + lane
            squares = sum_squares(float32s(x_at + 4 * row * n * size, (n * size,)), lanes)
            factor = ONE / np.sqrt(squares / np.float32(n * size) + np.float32(norm_eps))
            for i in range(n):
                pre[i] = sigmoid32((projected[row, i] * factor) * scale[0] + base[i]) + np.float32(eps)
                gate = sigmoid32((projected[row, n + i] * factor) * scale[1] + base[n + i])
                post[row, i] = gate + gate
            for i in range(entries):
                block[i, lane] = (projected[row, 2 * n + i] * factor) * scale[2] + base[2 * n + i]
            _mix(x[row], pre, mixed[row])
        sinkhorn_lanes(block, sums, count, n, np.float32(eps), iters)
        for lane in range(count):
            for i in range(entries):
                comb[start + lane, i] = block[i, lane]


@kernel
def _head(
    x_at: int,
    projected_at: int,
    scale_at: int,
    base_at: int,
    mixed_at: int,
    rows: int,
    num_streams: int,
    size: int,
    eps: float,
    norm_eps: float,
) -> None:
    n = num_streams
    x, mixed, projected = (
        float32s(x_at, (rows, n, size)),
        float32s(mixed_at, (rows, size)),
        float32s(projected_at, (rows, n)),
    )
    scale, base = float32s(scale_at, (1,)), float32s(base_at, (n,))
    lanes, pre = np.empty(LANES, np.float32), np.empty(n, np.float32)
    for row in range(rows):
        squares = sum_squares(float32s(x_at + 4 * row * n * size, (n * size,)), lanes)
        factor = ONE / np.sqrt(squares / np.float32(n * size) + np.float32(norm_eps))
        for i in range(n):
            pre[i] = sigmoid32((projected[row, i] * factor) * scale[0] + base[i]) + np.float32(eps)
        _mix(x[row], pre, mixed[row])


@kernel
def _post(
    y_at: int, x_at: int, post_at: int, comb_at: int, result_at: int, rows: int, num_streams: int, size: int
) -> None:
    n = num_streams
    y, x, result = float32s(y_at, (rows, size)), float32s(x_at, (rows, n, size)), float32s(result_at, (rows, n, size))
    post, comb = float32s(post_at, (rows, n)), float32s(comb_at, (rows, n, n))
    for row in range(rows):
        for j in range(n):
            target, gate = result[row, j], post[row, j]
            for d in range(size):
                target[d] = gate * y[row, d]
            for i in range(n):
                weight = comb[row, i, j]
                for d in range(size):
                    target[d] += weight * x[row, i, d]


@njit(inline="always")
def _mix(x: Any, pre: Any, mixed: Any) -> None:
    """sum_i pre_i X_i, added in order."""
    for d in range(mixed.size):
        mixed[d] = pre[0] * x[0, d]
    for i in range(1, pre.size):
        for d in range(mixed.size):
            mixed[d] += pre[i] * x[i, d]
