"""Inputs of swiglu for any number of rows."""

from typing import Any

import torch

ROW_INPUTS = ("gate_up", "weights")


def inputs(rows: int, dtype: torch.dtype = torch.float32, *, width: int = 19, extreme: bool = False) -> dict[str, Any]:
    """`extreme` reaches far beyond the clamp on both sides, to where e^-x overflows."""
    spread = 200.0 if extreme else 2.0
    return {
        "gate_up": torch.randn(rows, 2 * width, dtype=dtype) * spread,
        "limit": 10.0 if extreme else 1.5,
        "weights": torch.rand(rows, dtype=dtype),
    }
