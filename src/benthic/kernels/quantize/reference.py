"""The round trips of model.md 3.2, in plain PyTorch.

A group shares a power-of-two scale s = 2^ceil(log2(amax / largest)), found on the bits of amax / largest: its
exponent, plus one if the mantissa is not zero. Values are divided by s, rounded to nearest even in the format,
and multiplied back; both scalings are exact.
"""

import torch
from torch import Tensor

from benthic.kernels.precision import wide

FP8_MAX = 448.0
FP4_MAX = 6.0
FP8_FLOOR = 1e-4
FP4_FLOOR = 6.0 * 2.0**-126


def power_of_two_scale(amax: Tensor, largest: float) -> Tensor:
    """float32 2^ceil(log2(amax / largest)) for amax > 0."""
    bits = (amax.to(torch.float32) * (1.0 / largest)).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(torch.int32)
    return (exponent << 23).view(torch.float32)


def round_fp8_ref(x: Tensor, group: int) -> Tensor:
    """Q8(x, group): e4m3 under a power-of-two scale for each run of `group` values of the last dim."""
    grouped = torch.unflatten(wide(x), -1, (-1, group))
    scale = power_of_two_scale(grouped.abs().amax(-1, keepdim=True).clamp(min=FP8_FLOOR), FP8_MAX)
    return (_round_e4m3(grouped / scale) * scale).flatten(-2).to(x.dtype)


def round_fp4_ref(x: Tensor, group: int) -> Tensor:
    """Q4(x, group): e2m1 likewise."""
    grouped = torch.unflatten(wide(x), -1, (-1, group))
    scale = power_of_two_scale(grouped.abs().amax(-1, keepdim=True).clamp(min=FP4_FLOOR), FP4_MAX)
    return (_round_e2m1(grouped / scale) * scale).flatten(-2).to(x.dtype)


def round_fp8_blocks_ref(weight: Tensor, block: int = 128) -> Tensor:
    """Official FP8 weights: one scale for each block x block tile of the last two dims, edge tiles smaller."""
    rows, columns = weight.shape[-2:]
    padded = torch.nn.functional.pad(wide(weight), (0, -columns % block, 0, -rows % block))
    tiles = torch.unflatten(torch.unflatten(padded, -1, (-1, block)), -3, (-1, block))  # [..., rows/b, b, columns/b, b]
    scale = power_of_two_scale(tiles.abs().amax((-3, -1), keepdim=True).clamp(min=FP8_FLOOR), FP8_MAX)
    rounded = (_round_e4m3(tiles / scale) * scale).flatten(-2).flatten(-3, -2)
    return rounded[..., :rows, :columns].to(weight.dtype)


def hadamard_ref(x: Tensor) -> Tensor:
    """x . H / sqrt(n), H the Sylvester matrix, by log2(n) rounds of sums and differences."""
    size = x.shape[-1]
    y = wide(x)
    half = 1
    while half < size:
        a, b = torch.unflatten(y, -1, (-1, 2, half)).unbind(-2)
        y = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        half *= 2
    return (y * size**-0.5).to(x.dtype)


def _round_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(x.dtype)


def _round_e2m1(x: Tensor) -> Tensor:
    """Nearest of 0, .5, 1, 1.5, 2, 3, 4, 6 by magnitude, ties to even: steps of .5 to 2, of 1 to 4, of 2 beyond."""
    size = x.abs().clamp(max=FP4_MAX)
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0)).to(x.dtype)
    return torch.copysign((size / step).round() * step, x)
