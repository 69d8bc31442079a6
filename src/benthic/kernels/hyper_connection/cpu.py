"""mHC on the CPU: everything but the projection in one call a site.

The projection is formed stream by stream, and the partial products are added in order: products over one stream's
values are low enough in inputs to be exact at every number of rows (see `linear`).
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.hyper_connection.reference import HyperMix
from benthic.kernels.hyper_connection.sinkhorn_cpu import SINKHORN_ROWS, sinkhorn_lanes
from benthic.kernels.linear import is_by_columns
from benthic.kernels.linear.cpu import one_row_in_segments
from benthic.kernels.linear.reference import SAFE_ROWS
from benthic.kernels.numba_kernel import float32s, kernel, part
from benthic.kernels.numba_math import LANES, ONE, sigmoid32, sum_squares
from benthic.kernels.precision import wide


def hyper_pre_cpu(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, iters: int, norm_eps: float
) -> HyperMix:
    """See `hyper_pre`. The product is the library's; the rest of a row is one loop."""
    rows, num_streams, size = streams.shape
    x, scale, base = wide(streams).contiguous(), wide(scale).contiguous(), wide(base).contiguous()
    projected = _partial_products(x, wide(fn))
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
    projected = _partial_products(x, wide(fn))
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
    result = torch.empty_like(x)
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


def _partial_products(x: Tensor, fn: Tensor) -> Tensor:
    """x [R, n, D], fn [O, n D] -> [n, R, O]: the part of x . fn^T that comes from each stream."""
    rows, num_streams, size = x.shape
    if is_by_columns(fn):
        if rows == 1:
            return one_row_in_segments(x, fn, num_streams)
        return torch.bmm(x.transpose(0, 1), fn.t().view(num_streams, size, -1))
    if 0 < rows < SAFE_ROWS:
        return _partial_products(F.pad(x, (0, 0, 0, 0, 0, SAFE_ROWS - rows)), fn)[:, :rows].contiguous()
    return torch.bmm(x.transpose(0, 1), fn.view(-1, num_streams, size).permute(1, 2, 0))


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
    parts, a = float32s(projected_at, (n, rows, 2 * n + entries)), np.empty(2 * n + entries, np.float32)
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
            _add_parts(parts, row, factor, a)
            for i in range(n):
                pre[i] = sigmoid32(a[i] * scale[0] + base[i]) + np.float32(eps)
                gate = sigmoid32(a[n + i] * scale[1] + base[n + i])
                post[row, i] = gate + gate
            for i in range(entries):
                block[i, lane] = a[2 * n + i] * scale[2] + base[2 * n + i]
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
    x, mixed = float32s(x_at, (rows, n, size)), float32s(mixed_at, (rows, size))
    parts, a = float32s(projected_at, (n, rows, n)), np.empty(n, np.float32)
    scale, base = float32s(scale_at, (1,)), float32s(base_at, (n,))
    lanes, pre = np.empty(LANES, np.float32), np.empty(n, np.float32)
    for row in range(rows):
        squares = sum_squares(float32s(x_at + 4 * row * n * size, (n * size,)), lanes)
        factor = ONE / np.sqrt(squares / np.float32(n * size) + np.float32(norm_eps))
        _add_parts(parts, row, factor, a)
        for i in range(n):
            pre[i] = sigmoid32(a[i] * scale[0] + base[i]) + np.float32(eps)
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


@part
def _add_parts(parts: Any, row: int, factor: Any, a: Any) -> None:
    """(sum over streams, in order) * factor."""
    for i in range(a.size):
        total = parts[0, row, i]
        for stream in range(1, len(parts)):
            total += parts[stream, row, i]
        a[i] = total * factor


@part
def _mix(x: Any, pre: Any, mixed: Any) -> None:
    """sum_i pre_i X_i, added in order."""
    for d in range(mixed.size):
        mixed[d] = pre[0] * x[0, d]
    for i in range(1, pre.size):
        for d in range(mixed.size):
            mixed[d] += pre[i] * x[i, d]
