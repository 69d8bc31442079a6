"""Between the numbers of a piece and the bytes of a file, through `benthic.formats`."""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.errors import CheckpointError
from benthic.formats import dequantize_fp4, dequantize_fp8, quantize_fp4, quantize_fp8
from benthic.formats.fp8 import WEIGHT_FLOOR, ScaleFormat
from benthic.models.checkpoint.table import BLOCK, Storage

# The median scale of any trained or freshly drawn matrix lies inside. Exponent bytes of such scales, taken for numbers,
# are 97 and more: about 2**7, outside.
SCALE_EXPONENTS = (-30, 4)


class Encoded(NamedTuple):
    """A piece as it stands in files: `scale` is None unless it is quantised."""

    weight: Tensor
    scale: Tensor | None


def encode(values: Tensor, form: Storage, scale_format: ScaleFormat = "ue8m0") -> Encoded:
    """Rounds values to a number format; exact when they came from it. `scale_format` is that of FP8's scales."""
    match form:
        case "fp4":
            return Encoded(*quantize_fp4(values))
        case "fp8":
            return Encoded(*quantize_fp8(values, (BLOCK, BLOCK), scale_format=scale_format, floor=WEIGHT_FLOOR))
        case "bf16":
            return Encoded(values.to(torch.bfloat16), None)
        case "fp32":
            return Encoded(values.to(torch.float32), None)
        case "ids":
            return Encoded(values.to(torch.int64), None)


def decode(stored: Encoded, form: Storage) -> Tensor:
    """The values of a piece, float32; int64 for ids."""
    weight, scale = stored
    match form:
        case "fp4":
            assert scale is not None
            return dequantize_fp4(weight, scale)
        case "fp8":
            assert scale is not None
            return dequantize_fp8(weight, scale, (BLOCK, BLOCK))
        case "bf16" | "fp32":
            return weight.to(torch.float32)
        case "ids":
            return weight.to(torch.int64)


def check_scale_range(name: str, stored: Encoded) -> None:
    """Raises CheckpointError when scales cannot be those of weights: an exponent byte read as a number, a NaN."""
    scale = stored.scale
    if scale is None or not bool((stored.weight.view(torch.uint8) & 0x7F).any()):
        return
    if scale.dtype == torch.float8_e8m0fnu:
        exponents = scale.view(torch.uint8).to(torch.float32) - 127
        broken = exponents == 128
    else:
        exponents = torch.log2(scale.abs())
        broken = ~torch.isfinite(scale)
    if bool(broken.any()):
        raise CheckpointError(f"{name} has {int(broken.sum())} scales that are no number; each must be finite")
    median = float(exponents.median())
    low, high = SCALE_EXPONENTS
    if not low <= median <= high:
        raise CheckpointError(
            f"{name} has scales around 2**{median:.0f}; those of weights lie within 2**{low} .. 2**{high}: "
            "exponent bytes may have been stored as numbers"
        )
