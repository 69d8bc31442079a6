"""Number formats of the released weights: FP8 and FP4 with block scales, UE8M0 scales, the Hadamard rotation."""

from benthic.formats.blocks import Block
from benthic.formats.fp4 import decode_e2m1, dequantize_fp4, encode_e2m1, pack_fp4, quantize_fp4, unpack_fp4
from benthic.formats.fp8 import ScaleFormat, dequantize_fp8, quantize_fp8
from benthic.formats.hadamard import hadamard
from benthic.formats.recast import recast_fp4_to_fp8
from benthic.formats.ue8m0 import ue8m0_decode, ue8m0_encode, ue8m0_scale

__all__ = [
    "Block",
    "ScaleFormat",
    "decode_e2m1",
    "dequantize_fp4",
    "dequantize_fp8",
    "encode_e2m1",
    "hadamard",
    "pack_fp4",
    "quantize_fp4",
    "quantize_fp8",
    "recast_fp4_to_fp8",
    "ue8m0_decode",
    "ue8m0_encode",
    "ue8m0_scale",
    "unpack_fp4",
]
