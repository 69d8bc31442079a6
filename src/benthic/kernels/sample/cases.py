"""Inputs of sample for any number of rows."""

from typing import Any

import torch

ROW_INPUTS = ("logits", "temperature", "top_k", "top_p", "min_p", "seeds", "positions")


def inputs(rows: int, *, vocab_size: int = 101, **same: float) -> dict[str, Any]:
    """Every row with its own settings; `same` fixes a setting for all rows."""
    values = {
        "temperature": 2 * torch.rand(rows) * (torch.arange(rows) % 5 > 0),
        "top_k": torch.randint(0, vocab_size, (rows,)) * (torch.arange(rows) % 2),
        "top_p": torch.where(torch.arange(rows) % 3 > 0, torch.rand(rows).clamp(min=0.01), 1.0),
        "min_p": torch.rand(rows) * 0.2 * (torch.arange(rows) % 2),
        "seeds": torch.randint(-(2**62), 2**62, (rows,)),
        "positions": torch.randint(0, 10_000, (rows,)),
    }
    fixed = {name: torch.full((rows,), value, dtype=values[name].dtype) for name, value in same.items()}
    return {"logits": 2 * torch.randn(rows, vocab_size)} | values | fixed
