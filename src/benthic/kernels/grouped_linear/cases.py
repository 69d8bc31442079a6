"""Inputs of grouped_linear: rows in groups of given sizes."""

from collections.abc import Sequence
from typing import Any

import torch

# Groups without rows in front, between and behind; one row; many; all rows in one group; no rows.
SIZES = ((0, 1, 0, 2, 17, 0), (5, 5, 5), (0, 40, 0), (1, 1, 1, 1), (0, 0), (300, 1))


def inputs(
    sizes: Sequence[int], dtype: torch.dtype = torch.float32, *, shape: tuple[int, int] = (24, 40)
) -> dict[str, Any]:
    return {
        "x": torch.randn(sum(sizes), shape[1], dtype=dtype),
        "weight": torch.randn(len(sizes), *shape, dtype=dtype) / shape[1] ** 0.5,
        "group_ends": torch.tensor(sizes, dtype=torch.int32).cumsum(0).to(torch.int32),
    }
