"""All values of the small formats, built in Python floats (which are float64) from the definitions, not from torch."""

import math


def e4m3_value(code: int) -> float:
    """OCP e4m3fn: bias 7, no infinities, 0x7f and 0xff are NaN."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


def e2m1_value(code: int) -> float:
    """OCP e2m1: bias 1."""
    sign = -1.0 if code & 8 else 1.0
    exponent, mantissa = (code >> 1) & 3, code & 1
    return sign * (mantissa * 0.5 if exponent == 0 else (2 + mantissa) * 2.0 ** (exponent - 2))


def ue8m0_value(code: int) -> float:
    return math.nan if code == 255 else 2.0 ** (code - 127)


def nearest_code(value: float, grid: list[float]) -> int:
    """Index of the nearest of ascending magnitudes, ties to the even index, beyond the last to the last."""
    return min(range(len(grid)), key=lambda code: (abs(grid[code] - abs(value)), code % 2))


E4M3 = [e4m3_value(code) for code in range(256)]
E4M3_MAGNITUDES = E4M3[:127]
E2M1 = [e2m1_value(code) for code in range(16)]
E2M1_MAGNITUDES = E2M1[:8]
UE8M0 = [ue8m0_value(code) for code in range(256)]
