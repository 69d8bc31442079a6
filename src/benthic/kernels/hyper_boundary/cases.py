"""Inputs of a boundary and of an exit for any number of rows."""

from typing import Any

import torch

from benthic.kernels.hyper_connection.cases import post_inputs, pre_inputs

ROW_INPUTS = ("output", "streams", "post", "comb", "addend")


def boundary_inputs(
    rows: int, dtype: torch.dtype = torch.float32, *, size: int = 21, streams: int = 4, first: bool = False
) -> dict[str, Any]:
    """`first`: no sub-layer closes."""
    after = post_inputs(rows, size=size, streams=streams)
    before = pre_inputs(0, size=size, streams=streams)
    del before["streams"]
    rounded = {name: after[name].to(dtype) for name in ("output", "streams")}
    closing = {"output": None, "post": None, "comb": None} if first else {}
    return after | rounded | closing | before | {"gain": 1 + 0.1 * torch.randn(size), "addend": None}


def exit_inputs(rows: int, dtype: torch.dtype = torch.float32, *, size: int = 21, streams: int = 4) -> dict[str, Any]:
    inputs = boundary_inputs(rows, dtype, size=size, streams=streams)
    del inputs["iters"]
    return inputs | {"fn": inputs["fn"][:streams], "scale": inputs["scale"][:1], "base": inputs["base"][:streams]}
