"""The norm on CUDA: squares are exact in float64 and added there, so that no layout and no neighbour matters.

In which order they are added moves the float64 sum by some 1e-16 of itself, and the float32 that it is rounded to not
at all. So other kernels take `normed` for vectors that they hold, in any layout, and have the bits of this operation.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_VALUES_AT_ONCE = 4096


@triton.jit
def normed(x, gain, dim: tl.constexpr, eps, dtype: tl.constexpr):
    """x / rms(x) * gain, rounded to `dtype`; x is float32 [vectors, width], 0 beyond `dim`, gain float32 [width]."""
    exact = x.to(tl.float64)
    mean = (tl.sum(exact * exact, 1) / dim).to(tl.float32)
    return (x * tl.rsqrt(mean + eps)[:, None] * gain[None, :]).to(dtype)


@triton.jit
def _rms_norm(
    x, gain, y, rows, row_step, eps,
    dim: tl.constexpr, width: tl.constexpr, vectors: tl.constexpr, has_gain: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * vectors + tl.arange(0, vectors)
    place = tl.arange(0, width)
    inside = (row < rows)[:, None] & (place < dim)[None, :]
    values = tl.load(x + row[:, None] * row_step + place[None, :], mask=inside, other=0.0).to(tl.float32)
    factors = tl.full((width,), 1.0, tl.float32)
    if has_gain:
        factors = tl.load(gain + place, mask=place < dim, other=0.0).to(tl.float32)
    tl.store(
        y + row[:, None] * dim + place[None, :],
        normed(values, factors, dim, eps, y.dtype.element_ty),
        mask=inside,
    )


def rms_norm_triton(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """See `rms_norm`. Rows of a wider buffer (a column slice) are read in place."""
    dim = x.shape[-1]
    source = x if x.is_contiguous() or (x.dim() == 2 and x.stride(1) == 1) else x.contiguous()
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows = y.numel() // max(dim, 1)
    if not rows:
        return y
    width = triton.next_power_of_2(dim)
    vectors = max(1, min(_VALUES_AT_ONCE // width, triton.next_power_of_2(rows)) // 2)
    _rms_norm[(triton.cdiv(rows, vectors),)](
        source, source if gain is None else gain, y, rows, source.stride(0) if source.dim() == 2 else dim, eps,
        dim, width, vectors, gain is not None, num_warps=4 if width <= 4096 else 8, enable_fp_fusion=False,
    )  # fmt: skip
    return y
