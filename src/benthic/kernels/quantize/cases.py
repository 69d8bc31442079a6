"""Inputs of the round trips: values over the whole range of a format."""

import torch
from torch import Tensor


def activations(rows: int, width: int = 128, *, extreme: bool = False) -> Tensor:
    """`extreme` mixes in groups of zeros, of 1e-30 and of 1e30."""
    x = torch.randn(rows, width)
    if extreme:
        x *= torch.tensor([0.0, 1e-30, 1e30, 1.0])[torch.arange(rows) % 4][:, None]
    return x
