"""Inputs of rms_norm for any number of rows; tests and benches draw from here."""

from typing import Any

import torch

ROW_INPUTS = ("x",)


def inputs(rows: int, dtype: torch.dtype = torch.float32, *, width: int = 37, extreme: bool = False) -> dict[str, Any]:
    """`extreme` mixes in a zero row and rows of 1e-18 and 1e15, whose squares leave float32's comfortable range."""
    x = torch.randn(rows, width, dtype=dtype)
    if extreme:
        x *= torch.tensor([0.0, 1e-18, 1e15, 1.0], dtype=dtype)[torch.arange(rows) % 4][:, None]
    return {"x": x, "gain": 1 + 0.3 * torch.randn(width, dtype=dtype), "eps": 1e-6}
