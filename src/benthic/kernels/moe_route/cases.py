"""Inputs of moe_route for any number of rows."""

from typing import Any

import torch

ROW_INPUTS = ("logits",)


def inputs(
    rows: int, dtype: torch.dtype = torch.float32, *, num_experts: int = 16, tied: bool = False, extreme: bool = False
) -> dict[str, Any]:
    """`tied` rounds logits so that scores repeat; `extreme` has rows near -50, -100 and -1e4 (scores underflow)."""
    logits = torch.randn(rows, num_experts, dtype=dtype)
    if tied:
        logits = logits.round()
    if extreme:
        logits += torch.tensor([-50.0, -100.0, -1e4, 30.0], dtype=dtype)[torch.arange(rows) % 4][:, None]
    bias = None if tied else 0.1 * torch.randn(num_experts, dtype=dtype)
    return {"logits": logits, "top_k": 3, "scale": 1.5, "bias": bias}
