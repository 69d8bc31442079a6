"""Inputs of a boundary and of an exit for any number of rows."""

from typing import Any

import torch

from benthic.kernels.hyper_connection.cases import post_inputs, pre_inputs
from benthic.kernels.moe_experts import PickedRows

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


def picked_rows(rows: int, size: int, top_k: int = 6) -> PickedRows:
    """The output of routed experts in parts; the last rows are not live, and their parts are no numbers."""
    outputs = torch.randn(rows, top_k, size).bfloat16()
    slots = torch.randperm(rows * top_k, dtype=torch.int32).view(rows, top_k)
    dead = rows // 2 + 1
    slots[dead:], outputs[dead:] = -1, torch.nan
    return PickedRows(outputs.view(-1, size), slots, torch.randn(rows, size).bfloat16())
