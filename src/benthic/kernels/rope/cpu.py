"""apply_rope on the CPU: one call, rows and heads in a loop.

Each pairing has a kernel of its own: with distances as arguments a decoded row takes a fifth longer.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, kernel
from benthic.kernels.precision import wide


def apply_rope_cpu(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """See `apply_rope`. `x` [R, d] or [R, H, d]; rows of a wider buffer (a column slice) are read in place."""
    return _rotate(_apply_rope, x, cos, sin, inverse)


def apply_rope_halves_cpu(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    """The same with pairs (i, i + r/2) in the first r dims."""
    return _rotate(_apply_rope_halves, x, cos, sin, inverse)


def _rotate(turn: Callable[..., None], x: Tensor, cos: Tensor, sin: Tensor, inverse: bool) -> Tensor:
    source = wide(x)
    rows, dim = x.shape[0], x.shape[-1]
    heads = x.shape[1] if x.dim() == 3 else 1
    if source.stride(-1) != 1 or (x.dim() == 3 and source.stride(1) != dim):
        source = source.contiguous()
    cos, sin = cos.contiguous(), sin.contiguous()
    result = torch.empty_like(source, memory_format=torch.contiguous_format)
    if result.numel():
        turn(
            source.data_ptr(),
            cos.data_ptr(),
            sin.data_ptr(),
            result.data_ptr(),
            rows,
            heads,
            dim,
            cos.shape[1],
            source.stride(0),
            -1.0 if inverse else 1.0,
        )
    return result if x.dtype == torch.float32 else result.to(x.dtype)


@kernel
def _apply_rope(
    x_at: int,
    cos_at: int,
    sin_at: int,
    y_at: int,
    rows: int,
    heads: int,
    dim: int,
    pairs: int,
    row_stride: int,
    sign: float,
) -> None:
    cos, sin = float32s(cos_at, (rows, pairs)), float32s(sin_at, (rows, pairs))
    y = float32s(y_at, (rows, heads, dim))
    plain = dim - 2 * pairs
    flip = np.float32(sign)
    for row in range(rows):
        x = float32s(x_at + 4 * row * row_stride, (heads, dim))
        for head in range(heads):
            for i in range(plain):
                y[row, head, i] = x[head, i]
            before, after = x[head, plain:], y[row, head, plain:]
            for pair in range(pairs):
                a, b = before[2 * pair], before[2 * pair + 1]
                c, s = cos[row, pair], sin[row, pair] * flip
                after[2 * pair] = a * c - b * s
                after[2 * pair + 1] = a * s + b * c


@kernel
def _apply_rope_halves(
    x_at: int,
    cos_at: int,
    sin_at: int,
    y_at: int,
    rows: int,
    heads: int,
    dim: int,
    pairs: int,
    row_stride: int,
    sign: float,
) -> None:
    cos, sin = float32s(cos_at, (rows, pairs)), float32s(sin_at, (rows, pairs))
    y = float32s(y_at, (rows, heads, dim))
    flip = np.float32(sign)
    for row in range(rows):
        x = float32s(x_at + 4 * row * row_stride, (heads, dim))
        for head in range(heads):
            before, after = x[head], y[row, head]
            for pair in range(pairs):
                a, b = before[pair], before[pairs + pair]
                c, s = cos[row, pair], sin[row, pair] * flip
                after[pair] = a * c - b * s
                after[pairs + pair] = a * s + b * c
            for i in range(2 * pairs, dim):
                after[i] = before[i]
