"""Matrices for newton_schulz."""

import torch
from torch import Tensor

# Square, wide, tall, one row, one column, stacked.
SHAPES = ((64, 64), (24, 256), (256, 24), (1, 17), (17, 1), (3, 32, 48), (2, 2, 40, 16))


def conditioned(rows: int, columns: int, condition: float) -> Tensor:
    """A matrix whose singular values fall from 1 to 1 / condition, evenly in their logarithm."""
    size = min(rows, columns)
    left, _ = torch.linalg.qr(torch.randn(rows, size, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(columns, size, dtype=torch.float64))
    values = torch.logspace(0, -torch.log10(torch.tensor(condition)).item(), size, dtype=torch.float64)
    return ((left * values) @ right.T).to(torch.float32)
