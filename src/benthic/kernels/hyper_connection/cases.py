"""Inputs of hyper_pre, hyper_post, hyper_head and sinkhorn for any number of rows."""

from typing import Any

import torch

PRE_ROW_INPUTS = ("streams",)
POST_ROW_INPUTS = ("output", "streams", "post", "comb")


def pre_inputs(rows: int, dtype: torch.dtype = torch.float32, *, size: int = 21, streams: int = 4) -> dict[str, Any]:
    outputs = streams * (streams + 2)
    return {
        "streams": torch.randn(rows, streams, size, dtype=dtype),
        "fn": torch.randn(outputs, streams * size, dtype=dtype) / (streams * size) ** 0.5,
        "scale": 1 + 0.3 * torch.randn(3, dtype=dtype),
        "base": torch.randn(outputs, dtype=dtype),
        "eps": 1e-6,
        "iters": 20,
        "norm_eps": 1e-6,
    }


def head_inputs(rows: int, dtype: torch.dtype = torch.float32, *, size: int = 21, streams: int = 4) -> dict[str, Any]:
    inputs = pre_inputs(rows, dtype, size=size, streams=streams)
    del inputs["iters"]
    return inputs | {"fn": inputs["fn"][:streams], "scale": inputs["scale"][:1], "base": inputs["base"][:streams]}


def post_inputs(rows: int, dtype: torch.dtype = torch.float32, *, size: int = 21, streams: int = 4) -> dict[str, Any]:
    """`comb` is far from symmetric, so that a transposed mix cannot pass."""
    return {
        "output": torch.randn(rows, size, dtype=dtype),
        "streams": torch.randn(rows, streams, size, dtype=dtype),
        "post": 2 * torch.rand(rows, streams, dtype=dtype),
        "comb": torch.randn(rows, streams, streams, dtype=dtype).mul(2).softmax(1),
    }


def sinkhorn_inputs(rows: int, dtype: torch.dtype = torch.float32, *, spread: float = 2.0) -> dict[str, Any]:
    """Known failures B28 and B29 live at a spread of 30 and 40."""
    return {"comb_logits": torch.randn(rows, 4, 4, dtype=dtype).clamp(-1, 1) * spread, "eps": 1e-6, "iters": 20}
