"""Inputs of linear and batched_linear for any number of rows."""

from typing import Any

import torch

from benthic.kernels.linear.weights import Fp8Weight
from benthic.kernels.quantize import quantize_rows

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


def fp8_inputs(rows: int, shape: tuple[int, int], *, extreme: bool = False) -> dict[str, Any]:
    """Rows and weight in FP8; `extreme` spreads the groups' and tiles' magnitudes over 2^-40 .. 2^40."""
    x, weight = torch.randn(rows, shape[1]), torch.randn(shape) / shape[1] ** 0.5
    if extreme:
        exponent = torch.randint(-40, 41, (rows, shape[1] // 128)).repeat_interleave(128, 1)
        x = torch.ldexp(x, torch.where(exponent == 0, -200, exponent))
        tiles = torch.randint(-40, 41, (-(-shape[0] // 128), shape[1] // 128))
        weight = torch.ldexp(weight, tiles.repeat_interleave(128, 0)[: shape[0]].repeat_interleave(128, 1))
    return {"x": quantize_rows(x), "weight": Fp8Weight.of(weight)}
