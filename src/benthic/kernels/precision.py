"""Which precision a step of the mathematics is done in, and pointwise functions whose bits ignore neighbours.

On a CPU, torch computes `sigmoid`, `silu` and `softplus` with vector code on most of a flattened tensor and with
libm on its tail: other bits, so a row's value would depend on how many rows stand beside it. `exp` and `log1p` are
free of this. On CUDA the native functions are one launch each and have no tail. torch's own forms of the three
appear in no other file of this package.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# exp(80) is finite in float32; beyond it 0 * inf would make the gradient NaN where it should be 0.
EXP_LIMIT = 80.0


def wide(x: Tensor) -> Tensor:
    """At least float32: the islands of model.md 3.3. Float64 stays, so that gradients can be checked in it."""
    return x if x.dtype is torch.float32 or x.dtype is torch.float64 else x.to(torch.float32)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which matrix products over `x` run.

    CUDA multiplies in the activation dtype. On CPU products of rounded values run in float32: one rule of exactness
    for every dtype, and no dependence on which instructions a processor has for bfloat16.
    """
    if x.is_cuda:
        return x.dtype
    return torch.promote_types(x.dtype, torch.float32)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)), elementwise, at least float32."""
    x = wide(x)
    if x.is_cuda:
        return torch.sigmoid(x)
    return torch.reciprocal(torch.exp(-x.clamp(min=-EXP_LIMIT)) + 1.0)


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), elementwise, at least float32."""
    x = wide(x)
    return F.silu(x) if x.is_cuda else x * sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """ln(1 + exp(x)), elementwise, at least float32; equals x above 20, as torch's."""
    x = wide(x)
    if x.is_cuda:
        return F.softplus(x)
    return torch.where(x > 20.0, x, torch.log1p(torch.exp(x.clamp(max=20.0))))
