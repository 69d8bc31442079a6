"""FP4 e2m1, two codes a byte, one UE8M0 scale for each 32 values along the last dimension.

Code = sign << 3 | magnitude, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. The low four bits of a byte hold the even column
(the released files' order, model.md 3.1).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.formats.blocks import block_amax, check_scale, spread
from benthic.formats.ue8m0 import ue8m0_decode, ue8m0_scale

E2M1_MAX = 6.0
FP4_GROUP = 32
FP4_FLOOR = E2M1_MAX * 2.0**-126


class QuantizedFp4(NamedTuple):
    """`packed` int8 [..., i / 2]; `scale` float8_e8m0fnu [..., ceil(i / 32)]."""

    packed: Tensor
    scale: Tensor


def encode_e2m1(x: Tensor) -> Tensor:
    """Nearest e2m1 codes (ties to even, beyond 6 to 6, the sign of zero kept), uint8 in 0..15, shaped as `x`."""
    magnitude = x.abs().float()
    magnitudes = _magnitudes(x.device)
    edges = (magnitudes[:-1] + magnitudes[1:]) / 2
    # A tie goes to the even code: up from the odd ones.
    ties_up = torch.arange(7, device=x.device) % 2 == 1
    # bucketize counts the edges <= x; an edge whose tie goes down moves up by one step of float32.
    edges = torch.where(ties_up, edges, edges.nextafter(edges + 1))
    code = torch.bucketize(magnitude, edges, out_int32=True, right=True).to(torch.uint8)
    return code | (x.signbit().to(torch.uint8) << 3)


def decode_e2m1(codes: Tensor) -> Tensor:
    """float32 values of e2m1 codes 0..15 (uint8)."""
    magnitudes = _magnitudes(codes.device)
    table = torch.cat([magnitudes, -magnitudes])
    return table.index_select(0, codes.reshape(-1).int()).view(codes.shape)


def _magnitudes(device: torch.device) -> Tensor:
    """0, 0.5, 1, 1.5, 2, 3, 4, 6: computed in place, because a captured step may not copy them from the host."""
    code = torch.arange(8, device=device)
    quarters = torch.where(code < 2, 2 * code, (2 + code % 2) << (code // 2))
    return quarters * 0.25


def pack_fp4(codes: Tensor) -> Tensor:
    """uint8 codes [..., i] -> int8 bytes [..., i / 2], the even column in the low half."""
    if codes.shape[-1] % 2:
        raise KernelInputError(f"{codes.shape[-1]} columns cannot be packed two a byte; the number must be even")
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).contiguous().view(torch.int8)


def unpack_fp4(packed: Tensor) -> Tensor:
    """int8 bytes [..., i / 2] -> uint8 codes [..., i]."""
    if packed.dtype not in (torch.int8, torch.uint8):
        raise KernelInputError(f"packed FP4 has dtype {packed.dtype}; it must be int8")
    byte = packed.view(torch.uint8)
    return torch.stack((byte & 15, byte >> 4), dim=-1).flatten(-2)


def quantize_fp4(x: Tensor) -> QuantizedFp4:
    """Rounds to e2m1 in groups of 32 along the last dimension, scale = 2**ceil(log2(amax / 6)).

    The scale of a group with a value that is not finite is NaN. Weights that came from FP4 with scales of 2**-126 and
    more go back to the same values, though perhaps under a smaller scale.

    Args:
        x: floating [..., i], i even; the last group may be ragged. Computed in float32.
    """
    if not x.is_floating_point():
        raise KernelInputError(f"quantize_fp4 was given dtype {x.dtype}; it takes floating tensors")
    block = (1, FP4_GROUP)
    scale = ue8m0_scale(block_amax(x, block).clamp(min=FP4_FLOOR), E2M1_MAX)
    scaled = x.detach().float() / spread(ue8m0_decode(scale), x.shape, block)
    return QuantizedFp4(pack_fp4(encode_e2m1(scaled)), scale)


def dequantize_fp4(packed: Tensor, scale: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """code * scale in float32 (or float64 if asked for), then rounded to `dtype`; [..., i / 2] -> [..., i].

    Exact in float32 for every code and scale, except that 2 and more times 2**127 overflows to infinity.
    """
    codes = unpack_fp4(packed)
    block = (1, FP4_GROUP)
    check_scale(codes, scale, block)
    width = torch.float64 if dtype == torch.float64 else torch.float32
    return (decode_e2m1(codes).to(width) * spread(ue8m0_decode(scale).to(width), codes.shape, block)).to(dtype)
