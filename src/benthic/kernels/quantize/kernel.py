"""Rounding rows to FP8 on CUDA in one launch, with the bits of the reference.

A program takes a run of 128-wide groups. The scale is found on the bits of amax / 448, so it is the reference's; values
are divided exactly (by a power of two through its reciprocal, else rounded to nearest).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.formats import ScaleFormat
from benthic.kernels.quantize.rows import GROUP, QuantizedRows

_BLOCK = 16


@triton.jit
def fp8_scale(amax_bits, is_power: tl.constexpr):
    """float32 scale of groups with largest magnitude `amax_bits` (int32 bits of float32); NaN if it is not finite."""
    floor: tl.constexpr = 1e-4
    amax = tl.maximum(amax_bits.to(tl.float32, bitcast=True), floor)
    if is_power:
        bits = (amax * (1.0 / 448.0)).to(tl.int32, bitcast=True)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
        scale = (exponent << 23).to(tl.float32, bitcast=True)
    else:
        scale = tl.div_rn(amax, tl.full(amax.shape, 448.0, tl.float32))
    return tl.where(amax_bits >= 0x7F800000, float("nan"), scale)


@triton.jit
def divided(x, scale, is_power: tl.constexpr):
    """x / scale, clamped to e4m3's range; exact where the scale is a power of two of at most 2^120."""
    if is_power:
        inverse = (0x7F000000 - scale.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
        y = x * tl.where(scale == scale, inverse, scale)
    else:
        y = tl.div_rn(x, scale)
    # NaN passes both comparisons.
    return tl.where(y > 448.0, 448.0, tl.where(y < -448.0, -448.0, y))


@triton.jit
def to_e4m3(y):
    """float8e4nv, to nearest, ties to even, of |y| <= 448 or NaN.

    Rounded in float32 first, which makes the conversion exact: Triton's interpreter truncates.
    """
    bits = y.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = (size + 0x7FFFF + ((size >> 20) & 1)) & 0x7FF00000
    # Below 2^-6 the step is 2^-9, which is what float32 resolves at 2^14.
    tiny = (size.to(tl.float32, bitcast=True) + 16384.0 - 16384.0).to(tl.int32, bitcast=True)
    size = tl.where(size > 0x7F800000, size, tl.where(size < 0x3C800000, tiny, normal))
    return (size | (bits & -0x80000000)).to(tl.float32, bitcast=True).to(tl.float8e4nv)


@triton.jit
def _quantize(x, data, scale, groups, groups_a_row, row_stride, is_power: tl.constexpr, block: tl.constexpr):
    group = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    column = tl.arange(0, 128)
    inside = group < groups
    place = group // groups_a_row * row_stride + group % groups_a_row * 128
    values = tl.load(x + place[:, None] + column[None, :], mask=inside[:, None], other=0.0).to(tl.float32)
    amax_bits = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
    factor = fp8_scale(amax_bits, is_power)
    codes = to_e4m3(divided(values, factor[:, None], is_power))
    tl.store(data + group[:, None] * 128 + column[None, :], codes, mask=inside[:, None])
    tl.store(scale + group, factor, mask=inside)


def quantize_rows_cuda(x: Tensor, scale: ScaleFormat) -> QuantizedRows:
    """x [R, I] in a float dtype with unit column stride."""
    rows, inputs = x.shape
    data = torch.empty((rows, inputs), dtype=torch.float8_e4m3fn, device=x.device)
    factor = torch.empty((rows, inputs // GROUP), dtype=torch.float32, device=x.device)
    groups = factor.numel()
    if groups:
        # Few groups: one a program, since the launch is as long as its slowest program.
        block = 4 if groups <= 4096 else _BLOCK
        _quantize[(triton.cdiv(groups, block),)](
            x, data, factor, groups, inputs // GROUP, x.stride(0), scale == "ue8m0", block, num_warps=4
        )
    return QuantizedRows(data, factor)


@triton.jit
def _round_trip(
    x, out, groups, groups_a_row, row_stride, width, is_power: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    row, first = group // groups_a_row, group % groups_a_row * 128
    column = first[:, None] + tl.arange(0, 128)[None, :]
    inside = (group < groups)[:, None] & (column < width)
    values = tl.load(x + row[:, None] * row_stride + column, mask=inside, other=0.0).to(tl.float32)
    factor = fp8_scale(tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1), is_power)
    rounded = to_e4m3(divided(values, factor[:, None], is_power)).to(tl.float32) * factor[:, None]
    tl.store(out + row[:, None] * width + column, rounded.to(out.dtype.element_ty), mask=inside)


def round_rows_cuda(x: Tensor, scale: ScaleFormat) -> Tensor:
    """Values that remain of x [R, I], any I, in its dtype; unit column stride."""
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    a_row = triton.cdiv(width, GROUP)
    groups = rows * a_row
    if groups:
        block = 4 if groups <= 4096 else _BLOCK
        _round_trip[(triton.cdiv(groups, block),)](
            x, out, groups, a_row, x.stride(0), width, scale == "ue8m0", block, num_warps=4
        )
    return out
