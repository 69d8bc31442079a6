"""FP4 weights to FP8 weights without a change of value, as the official converter does.

Each 128x128 tile gets the scale s8 = max(group scale) / 64, and each value becomes code4 * (scale / s8) in e4m3. That
is exact while scale / s8 lies in 2**-8 .. 2**6, that is while the tile's scales lie within a factor 2**14 of the
largest (model.md 3.1).
"""

import torch
from torch import Tensor

from benthic.errors import CheckpointError
from benthic.formats.blocks import Block, check_scale, scale_shape, spread
from benthic.formats.fp4 import FP4_GROUP, decode_e2m1, unpack_fp4
from benthic.formats.fp8 import QuantizedFp8

TILE: Block = (128, 128)
_HEADROOM = 6  # log2 of 64: 6 * 2**6 = 384 is the largest e4m3 value that an e2m1 value reaches
_RANGE = 14  # log2: 0.5 * 2**-8 is the smallest e4m3 value, 14 below the top


def recast_fp4_to_fp8(packed: Tensor, scale: Tensor) -> QuantizedFp8:
    """The same weights as FP8 in tiles of 128x128 with UE8M0 scales.

    Args:
        packed: int8 [..., o, i / 2].
        scale: float8_e8m0fnu [..., o, ceil(i / 32)].

    Raises:
        CheckpointError: a tile's scales lie too far apart (groups of zeros do not count), or a scale is NaN.
    """
    codes = unpack_fp4(packed)
    check_scale(codes, scale, (1, FP4_GROUP))
    exponent = scale.view(torch.uint8).int()
    if (exponent == 255).any():
        raise CheckpointError("an FP4 group has the scale NaN (byte 255); it must be a power of two")
    groups = (TILE[0], TILE[1] // FP4_GROUP)
    top = _tile_max(exponent, groups)
    _check_range(codes, exponent, top, groups)
    # Byte 0 is the least scale there is; a tile that low has less than 64 of headroom and needs none.
    tile = (top - _HEADROOM).clamp(min=0).to(torch.uint8).view(torch.float8_e8m0fnu)
    # Powers of two are subtracted as exponents: the ratio of two extreme scales would leave float32 on the way.
    shift = spread(exponent - spread(tile.view(torch.uint8).int(), exponent.shape, groups), codes.shape, (1, FP4_GROUP))
    values = torch.ldexp(decode_e2m1(codes), shift)
    return QuantizedFp8(values.to(torch.float8_e4m3fn), tile)


def _tile_max(exponent: Tensor, groups: Block) -> Tensor:
    """Largest exponent byte of each tile: int32 [..., o, g] -> [..., ceil(o / 128), ceil(g / 4)]."""
    rows, columns = groups
    padding = (0, -exponent.shape[-1] % columns, 0, -exponent.shape[-2] % rows)
    padded = torch.nn.functional.pad(exponent, padding)
    tiled = padded.unflatten(-1, (-1, columns)).amax(-1).unflatten(-2, (-1, rows)).amax(-2)
    return tiled.view(scale_shape(exponent.shape, groups))


def _check_range(codes: Tensor, exponent: Tensor, top: Tensor, groups: Block) -> None:
    padded = torch.nn.functional.pad(codes & 7, (0, -codes.shape[-1] % FP4_GROUP))
    holds_values = padded.unflatten(-1, (-1, FP4_GROUP)).amax(-1) > 0
    below = spread(top, exponent.shape, groups) - exponent
    wrong = holds_values & (below > _RANGE)
    if wrong.any():
        index = tuple(wrong.nonzero()[0].tolist())
        raise CheckpointError(
            f"FP4 group {index} has a scale 2**{int(below[index])} below the largest of its {TILE[0]}x{TILE[1]} tile; "
            f"FP8 holds both up to 2**{_RANGE}: keep these weights in FP4, or write bf16"
        )
