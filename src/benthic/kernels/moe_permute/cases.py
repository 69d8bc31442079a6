"""Inputs of moe_permute: picks of rows."""

from typing import Literal

import torch
from torch import Tensor

Kind = Literal["random", "one expert", "all experts", "no rows"]
KINDS: tuple[Kind, ...] = ("random", "one expert", "all experts", "no rows")


def picks(kind: Kind, rows: int = 11, num_experts: int = 8, top_k: int = 3) -> Tensor:
    """int64 [R, K]; experts of a row are distinct but in "one expert"."""
    if kind == "no rows":
        return torch.empty(0, top_k, dtype=torch.int64)
    if kind == "one expert":
        return torch.full((rows, top_k), num_experts - 1)
    if kind == "all experts":
        return torch.arange(rows * top_k).view(rows, top_k) % num_experts
    return torch.rand(rows, num_experts).argsort(1)[:, :top_k].contiguous()
