"""Elementwise float32 functions and sums for numba kernels, in one explicit order of operations.

Nothing here is compiled with fastmath: no operation is reordered or fused, so vector code, its remainder loop and
every processor give the same bits. That is what makes a kernel's row independent of its neighbours.
"""

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from benthic.kernels.numba_kernel import inlined, part

ZERO = np.float32(0.0)
ONE = np.float32(1.0)
HALF = np.float32(0.5)
LOG2_E = np.float32(1.44269504088896341)
# ln 2 in two parts, the first short enough that n * LN2_HIGH is exact.
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
# e^r on |r| <= ln(2) / 2, Cephes expf.
C5 = np.float32(1.9875691500e-4)
C4 = np.float32(1.3981999507e-3)
C3 = np.float32(8.3334519073e-3)
C2 = np.float32(4.1665795894e-2)
C1 = np.float32(1.6666665459e-1)
C0 = np.float32(5.0000001201e-1)
# log(1 + z) = z - z^2 / 2 + z^3 * (polynomial) on 1 + z in [1 / sqrt 2, sqrt 2], Cephes logf.
SQRT2 = np.float32(1.41421356)
L0 = np.float32(3.3333331174e-1)
L1 = np.float32(-2.4999993993e-1)
L2 = np.float32(2.0000714765e-1)
L3 = np.float32(-1.6668057665e-1)
L4 = np.float32(1.4249322787e-1)
L5 = np.float32(-1.2420140846e-1)
L6 = np.float32(1.1676998740e-1)
L7 = np.float32(-1.1514610310e-1)
L8 = np.float32(7.0376836292e-2)
LOWEST = np.float32(-87.0)
HIGHEST = np.float32(88.0)
BIAS = np.int32(127)
MANTISSA_BITS = np.int32(23)
LANES = 16


@intrinsic
def fma32(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c, rounded once."""
    return types.float32(types.float32, types.float32, types.float32), _fused


def _fused(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.fma(*args)


@inlined
def exp32(x: Any) -> Any:
    """e^x for float32, within one unit in the last place: 0 below -87, e^88 above 88; NaN stays NaN."""
    is_above_zero = x >= LOWEST
    x = min(max(x, LOWEST), HIGHEST)
    n = np.floor(x * LOG2_E + HALF)
    r = x - n * LN2_HIGH
    r = r - n * LN2_LOW
    p = C5
    p = p * r + C4
    p = p * r + C3
    p = p * r + C2
    p = p * r + C1
    p = p * r + C0
    power = np.int32((np.int32(n) + BIAS) << MANTISSA_BITS).view(np.float32)
    return ((p * (r * r) + r) + ONE) * (power if is_above_zero else ZERO)


@inlined
def sigmoid32(x: Any) -> Any:
    """1 / (1 + e^-x)."""
    return ONE / (ONE + exp32(-x))


@inlined
def softplus32(x: Any) -> Any:
    """ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|)."""
    return max(x, ZERO) + _log1p_of_fraction(exp32(-abs(x)))


@inlined
def _log1p_of_fraction(t: Any) -> Any:
    """ln(1 + t) for 0 <= t <= 1: of the rounded sum, corrected by what the rounding lost."""
    total = ONE + t
    lost = (t - (total - ONE)) / total
    is_upper = total > SQRT2
    z = (total * HALF if is_upper else total) - ONE
    p = L8
    p = p * z + L7
    p = p * z + L6
    p = p * z + L5
    p = p * z + L4
    p = p * z + L3
    p = p * z + L2
    p = p * z + L1
    p = p * z + L0
    square = z * z
    y = (square * z) * p - HALF * square
    low, high = (LN2_LOW, LN2_HIGH) if is_upper else (ZERO, ZERO)
    return ((y + low) + z + high) + lost


@part
def sum_squares(x: Any, lanes: Any) -> Any:
    """sum x_i^2: value i goes to lane i mod 16, each lane adds in order, then lanes are added in order.

    `lanes` is scratch, float32 [16].
    """
    lanes[:] = 0
    whole = x.size // LANES * LANES
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            value = x[first + lane]
            lanes[lane] += value * value
    for i in range(whole, x.size):
        lanes[i - whole] += x[i] * x[i]
    total = np.float32(0.0)
    for lane in range(LANES):
        total += lanes[lane]
    return total
