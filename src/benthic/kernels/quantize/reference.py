"""The round trips of model.md 3.2, in plain PyTorch; those of weights are the formats' own.

A group shares a power-of-two scale s = 2^ceil(log2(amax / largest)), found on the bits of amax / largest: its
exponent, plus one if the mantissa is not zero. Values are divided by s, rounded to nearest even in the format,
and multiplied back; both scalings are exact.
"""

import torch
from torch import Tensor

from benthic.formats import ScaleFormat, dequantize_fp4, dequantize_fp8, quantize_fp4, quantize_fp8
from benthic.formats.fp8 import WEIGHT_FLOOR
from benthic.kernels.precision import wide
from benthic.kernels.quantize.rows import GROUP, QuantizedRows

FP8_MAX = 448.0
FP4_MAX = 6.0
FP8_FLOOR = 1e-4
FP4_FLOOR = 6.0 * 2.0**-126
WEIGHT_TILE = (128, 128)


def power_of_two_scale(amax: Tensor, largest: float) -> Tensor:
    """float32 2^ceil(log2(amax / largest)) for amax > 0."""
    bits = (amax.to(torch.float32) * (1.0 / largest)).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def round_fp8_ref(x: Tensor, group: int, scale: ScaleFormat = "ue8m0") -> Tensor:
    """Q8(x, group): e4m3 under a scale for each run of `group` values: a power of two, or amax / 448 as V3 has it."""
    grouped = torch.unflatten(wide(x), -1, (-1, group))
    factor = _fp8_scale(grouped, scale)
    return (_round_e4m3(grouped / factor) * factor).flatten(-2).to(x.dtype)


def quantize_rows_ref(x: Tensor, scale: ScaleFormat = "ue8m0") -> QuantizedRows:
    """The codes and scales whose products `round_fp8_ref` gives; a group that is not finite becomes NaN as a whole."""
    grouped = torch.unflatten(wide(x), -1, (-1, GROUP))
    factor = _fp8_scale(grouped, scale).to(torch.float32)
    factor = torch.where(grouped.isfinite().all(-1, keepdim=True), factor, torch.nan)
    codes = (grouped / factor).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return QuantizedRows(codes.flatten(-2), factor[..., 0])


def round_fp4_ref(x: Tensor, group: int) -> Tensor:
    """Q4(x, group): e2m1 likewise."""
    grouped = torch.unflatten(wide(x), -1, (-1, group))
    scale = power_of_two_scale(grouped.abs().amax(-1, keepdim=True).clamp(min=FP4_FLOOR), FP4_MAX)
    return (_round_e2m1(grouped / scale) * scale).flatten(-2).to(x.dtype)


def round_fp8_weight_ref(weight: Tensor) -> Tensor:
    """Official FP8 weights: one scale for each 128 x 128 tile of the last two dims, edge tiles smaller."""
    codes, scale = quantize_fp8(weight, WEIGHT_TILE, floor=WEIGHT_FLOOR)
    return dequantize_fp8(codes, scale, WEIGHT_TILE, dtype=weight.dtype)


def round_fp4_weight_ref(weight: Tensor) -> Tensor:
    """Official FP4 experts: one scale for each 32 values along the input."""
    return dequantize_fp4(*quantize_fp4(weight), dtype=weight.dtype)


def _fp8_scale(grouped: Tensor, scale: ScaleFormat) -> Tensor:
    """[..., 1] for [..., group]. Divided by a tensor: by a number, CUDA multiplies with a rounded reciprocal."""
    amax = grouped.abs().amax(-1, keepdim=True).clamp(min=FP8_FLOOR)
    return power_of_two_scale(amax, FP8_MAX) if scale == "ue8m0" else amax / torch.full_like(amax, FP8_MAX)


def _round_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(x.dtype)


def _round_e2m1(x: Tensor) -> Tensor:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 by magnitude, ties to even: steps of .5 to 2, of 1 to 4, of 2 beyond."""
    size = x.abs().clamp(max=FP4_MAX)
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0)).to(x.dtype)
    return torch.copysign((size / step).round() * step, x)
