"""The orthonormal Walsh-Hadamard rotation in Sylvester's order, which the indexer applies before FP4 (model.md 2.6)."""

import torch
from torch import Tensor

from benthic.errors import KernelInputError


def hadamard(x: Tensor) -> Tensor:
    """x @ H / sqrt(n) over the last dimension, H[i, j] = (-1)**popcount(i & j).

    Its own inverse. Computed by butterflies in float32 (float64 stays), one rounding to the input's dtype at the end;
    differentiable; each row's bits depend on that row alone.

    Args:
        x: floating [..., n], n a power of two.
    """
    size = x.shape[-1]
    if size < 1 or size & (size - 1):
        raise KernelInputError(f"the Hadamard rotation was given a last dimension of {size}; it takes powers of two")
    wide = x if x.dtype == torch.float64 else x.float()
    half = 1
    while half < size:
        pairs = wide.unflatten(-1, (-1, 2, half))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        wide = torch.stack((low + high, low - high), dim=-2).flatten(-3)
        half *= 2
    return (wide * size**-0.5).to(x.dtype)
