"""Counter-based random numbers: the number of (seed, position) is the same at any load, in any batch, on any device.

splitmix64 (Steele, Lea, Flood 2014): step p + 1 of the stream whose start is the mixed seed. Integer arithmetic
modulo 2^64, so every device agrees on every bit.
"""

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """float64 in [0, 1), 53 random bits; `seeds` and `positions` int64 of one shape."""
    bits = mix(mix(seeds) + (positions + 1) * signed(GOLDEN))
    return _shifted(bits, 11).to(torch.float64) * 2.0**-53


def mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser, a bijection of 64-bit integers."""
    x = (x ^ _shifted(x, 30)) * signed(FIRST)
    x = (x ^ _shifted(x, 27)) * signed(SECOND)
    return x ^ _shifted(x, 31)


def signed(constant: int) -> int:
    """The int64 with the bits of a uint64."""
    return constant - (1 << 64) if constant >= 1 << 63 else constant


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
