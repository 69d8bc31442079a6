"""Inputs of token_logprobs and linear_cross_entropy for any number of rows."""

from typing import Any

import torch

ROW_INPUTS = ("logits", "ids")


def inputs(
    rows: int, dtype: torch.dtype = torch.float32, *, vocab_size: int = 101, extreme: bool = False
) -> dict[str, Any]:
    """`extreme`: one logit of 1e4 above the rest, and rows of equal logits."""
    logits = torch.randn(rows, vocab_size, dtype=dtype)
    if extreme:
        logits[::2, 3] = 1e4
        logits[1::2] = -1e4
    return {"logits": logits, "ids": torch.randint(0, vocab_size, (rows,))}


def loss_inputs(
    rows: int, dtype: torch.dtype = torch.float32, *, vocab_size: int = 101, width: int = 16
) -> dict[str, Any]:
    return {
        "hidden": torch.randn(rows, width, dtype=dtype),
        "head": torch.randn(vocab_size, width, dtype=dtype),
        "targets": torch.randint(0, vocab_size, (rows,)),
        "weights": torch.rand(rows, dtype=dtype).round(decimals=1),
    }
