"""FP8 e4m3 with one scale a block: value = code * scale. Codes reach 448; there is no infinity.

Used for the released linears (128x128 blocks, UE8M0 scales), older checkpoints (128x128, float32 scales) and
activations (groups of 128 or 64 along the last dimension).
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.formats.blocks import Block, block_amax, check_block, check_scale, spread
from benthic.formats.ue8m0 import ue8m0_decode, ue8m0_scale

ScaleFormat = Literal["ue8m0", "fp32"]

E4M3_MAX = 448.0
ACTIVATION_FLOOR = 1e-4
"""The official code never scales by an amax below this (model.md 3.2)."""
WEIGHT_FLOOR = E4M3_MAX * 2.0**-127
"""With this floor, weights that came from FP8 with UE8M0 scales go back without any change."""


class QuantizedFp8(NamedTuple):
    """`codes` float8_e4m3fn, shaped as the input; `scale` float8_e8m0fnu or float32, one a block."""

    codes: Tensor
    scale: Tensor


def quantize_fp8(
    x: Tensor, block: Block, *, scale_format: ScaleFormat = "ue8m0", floor: float = ACTIVATION_FLOOR
) -> QuantizedFp8:
    """Rounds to e4m3 (to nearest, ties to even), each block under its own scale.

    A block with a value that is not finite becomes NaN as a whole.

    Args:
        x: floating [..., o, i], or [..., i] when the block has one row. Computed in float32.
        block: (rows, columns) that share a scale; the last blocks may be ragged.
        scale_format: "ue8m0" for powers of two, rounded up; "fp32" for amax / 448 as it is.
        floor: least amax of a block: ACTIVATION_FLOOR or WEIGHT_FLOOR.
    """
    check_block(x, block)
    if not x.is_floating_point():
        raise KernelInputError(f"quantize_fp8 was given dtype {x.dtype}; it takes floating tensors")
    amax = block_amax(x, block).clamp(min=floor)
    if scale_format == "ue8m0":
        scale = ue8m0_scale(amax, E4M3_MAX)
        factor = ue8m0_decode(scale)
    else:
        scale = factor = torch.where(amax.isfinite(), amax / E4M3_MAX, torch.nan)
    scaled = x.detach().float() / spread(factor, x.shape, block)
    return QuantizedFp8(scaled.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale)


def dequantize_fp8(codes: Tensor, scale: Tensor, block: Block, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """code * scale in float32 (or float64 if asked for), then rounded to `dtype`.

    With UE8M0 scales the product is exact in float32 for every code and scale, except that it overflows to infinity
    where the value passes 2**128.

    Args:
        codes: float8_e4m3fn [..., o, i].
        scale: float8_e8m0fnu or float32, one a block.
        block: (rows, columns) that share a scale.
        dtype: of the result.
    """
    if codes.dtype != torch.float8_e4m3fn:
        raise KernelInputError(f"FP8 codes have dtype {codes.dtype}; they must be float8_e4m3fn")
    check_scale(codes, scale, block)
    factor = scale if scale.dtype == torch.float32 else ue8m0_decode(scale)
    width = torch.float64 if dtype == torch.float64 else torch.float32
    return (codes.to(width) * spread(factor.to(width), codes.shape, block)).to(dtype)
