"""Inputs of linear and batched_linear for any number of rows."""

from typing import Any

import torch

ROW_INPUTS = ("x",)
# (O, I): a model's kinds of weight, odd sizes, one output, and inputs beyond a library's block.
SHAPES = ((592, 256), (16, 256), (256, 128), (33, 37), (1, 64), (48, 1000))


def inputs(rows: int, dtype: torch.dtype = torch.float32, *, shape: tuple[int, int] = (33, 37)) -> dict[str, Any]:
    return {"x": torch.randn(rows, shape[1], dtype=dtype), "weight": torch.randn(shape, dtype=dtype) / shape[1] ** 0.5}


def batched_inputs(rows: int, dtype: torch.dtype = torch.float32, *, groups: int = 3) -> dict[str, Any]:
    return {
        "x": torch.randn(rows, groups, 40, dtype=dtype),
        "weight": torch.randn(groups, 24, 40, dtype=dtype) / 40**0.5,
    }
