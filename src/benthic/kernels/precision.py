"""Which precision a step of the mathematics is done in."""

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """At least float32: the islands of model.md 3.3. Float64 stays, so that gradients can be checked in it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which matrix products over `x` run.

    CUDA multiplies in the activation dtype. On CPU products of rounded values run in float32: one rule of exactness
    for every dtype, and no dependence on which instructions a processor has for bfloat16.
    """
    if x.is_cuda:
        return x.dtype
    return torch.promote_types(x.dtype, torch.float32)
