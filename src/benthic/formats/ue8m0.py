"""UE8M0: a scale that is a power of two in one byte. Byte b means 2**(b - 127); 255 means NaN; there is no zero.

Everything works on the bits of float32, where such a scale is the exponent field itself. Byte 0 is the one exception:
2**-127 is below the normal range of float32.
"""

import torch
from torch import Tensor

from benthic.errors import KernelInputError

_SUBNORMAL_BITS = 1 << 22  # 2**-127 as float32
_NAN_BITS = 0x7FC00000
_MANTISSA = (1 << 23) - 1


def ue8m0_decode(scale: Tensor) -> Tensor:
    """The float32 values of UE8M0 bytes.

    Args:
        scale: float8_e8m0fnu or uint8, any shape.
    """
    code = _bytes(scale).int()
    bits = (code << 23).masked_fill(code == 0, _SUBNORMAL_BITS).masked_fill(code == 255, _NAN_BITS)
    return bits.view(torch.float32)


def ue8m0_encode(value: Tensor) -> Tensor:
    """The UE8M0 bytes of exact powers of two.

    Args:
        value: floating, any shape; each 2**k with -127 <= k <= 127, or NaN.

    Returns:
        float8_e8m0fnu of the same shape.

    Raises:
        KernelInputError: a value is no such power of two; rounding here would hide a mistake elsewhere.
    """
    scale = _exponent_byte(value.float())
    exact = ue8m0_decode(scale)
    wrong = (exact != value) & ~value.isnan()
    if wrong.any():
        first = value[wrong][0].item()
        raise KernelInputError(f"scale {first!r} is no power of two from 2**-127 to 2**127")
    return scale


def ue8m0_scale(amax: Tensor, largest: float) -> Tensor:
    """The smallest power of two s such that amax / s fits under the largest finite value of a format.

    That is s = 2**ceil(log2(amax / largest)), taken from the bits as the official code does: the exponent of
    amax * (1 / largest), plus one unless the mantissa is zero (model.md 3.2).

    Args:
        amax: float32, any shape, not negative.
        largest: 448 for e4m3, 6 for e2m1.

    Returns:
        float8_e8m0fnu of the same shape; NaN where amax is not finite.
    """
    return _exponent_byte(amax.float() * (1.0 / largest))


def _exponent_byte(value: Tensor) -> Tensor:
    """Rounds positive float32 values up to a power of two; below 2**-127 to that."""
    bits = value.view(torch.int32)
    exponent, mantissa = bits >> 23, bits & _MANTISSA
    # Exponent 0 holds the subnormals: up to 2**-127 they round to byte 0, above it to byte 1.
    subnormal = (mantissa > _SUBNORMAL_BITS).int()
    code = torch.where(exponent == 0, subnormal, exponent + (mantissa != 0))
    # A value above 2**127, an infinity, a NaN or a negative number has no scale.
    code = code.masked_fill((bits < 0) | (code > 254), 255)
    return code.to(torch.uint8).view(torch.float8_e8m0fnu)


def _bytes(scale: Tensor) -> Tensor:
    if scale.dtype not in (torch.float8_e8m0fnu, torch.uint8):
        raise KernelInputError(f"UE8M0 scales have dtype {scale.dtype}; they must be float8_e8m0fnu or uint8")
    return scale.view(torch.uint8)
