"""Sinkhorn normalisation on CUDA: one launch forward, one backward, a matrix a lane of the program.

As 39 tensor operations a site it would be thousands of launches a training step and most of a compilation, so it is
one opaque operator. The gradient keeps only the input: the backward kernel runs the steps again, leaving the divisors
in scratch memory, then walks back through x = y * s, since every step is y = x / s.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 64


@triton.jit
def _forward(logits, out, rows, eps, iters, n: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0) * block + tl.arange(0, block)
    i, j = tl.arange(0, n), tl.arange(0, n)
    place = row[:, None, None] * (n * n) + i[None, :, None] * n + j[None, None, :]
    inside = row[:, None, None] < rows
    x = tl.load(logits + place, mask=inside, other=0.0)
    x = tl.exp(x - tl.max(x, 2)[:, :, None])
    x = x / tl.sum(x, 2)[:, :, None] + eps
    x = x / (tl.sum(x, 1) + eps)[:, None, :]
    for _ in range(iters - 1):
        x = x / (tl.sum(x, 2) + eps)[:, :, None]
        x = x / (tl.sum(x, 1) + eps)[:, None, :]
    tl.store(out + place, x, mask=inside)


@triton.jit
def _backward(logits, grad, divisors, out, rows, eps, iters, n: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0) * block + tl.arange(0, block)
    i, j = tl.arange(0, n), tl.arange(0, n)
    place = row[:, None, None] * (n * n) + i[None, :, None] * n + j[None, None, :]
    inside = row[:, None, None] < rows
    lane = row[:, None] * n + i[None, :]
    lane_inside = row[:, None] < rows
    step = rows * n
    x = tl.load(logits + place, mask=inside, other=0.0)
    x = tl.exp(x - tl.max(x, 2)[:, :, None])
    probabilities = x / tl.sum(x, 2)[:, :, None]
    x = probabilities + eps
    s = tl.sum(x, 1) + eps
    tl.store(divisors + lane, s, mask=lane_inside)
    x = x / s[:, None, :]
    for k in range(iters - 1):
        s = tl.sum(x, 2) + eps
        tl.store(divisors + (2 * k + 1) * step + lane, s, mask=lane_inside)
        x = x / s[:, :, None]
        s = tl.sum(x, 1) + eps
        tl.store(divisors + (2 * k + 2) * step + lane, s, mask=lane_inside)
        x = x / s[:, None, :]
    # Another thread of this program may have written what this one reads.
    tl.debug_barrier()
    g = tl.load(grad + place, mask=inside, other=0.0)
    for back in range(iters - 1):
        k = iters - 2 - back
        s = tl.load(divisors + (2 * k + 2) * step + lane, mask=lane_inside, other=1.0)
        g = (g - tl.sum(g * x, 1)[:, None, :]) / s[:, None, :]
        x = x * s[:, None, :]
        s = tl.load(divisors + (2 * k + 1) * step + lane, mask=lane_inside, other=1.0)
        g = (g - tl.sum(g * x, 2)[:, :, None]) / s[:, :, None]
        x = x * s[:, :, None]
    s = tl.load(divisors + lane, mask=lane_inside, other=1.0)
    g = (g - tl.sum(g * x, 1)[:, None, :]) / s[:, None, :]
    g = probabilities * (g - tl.sum(g * probabilities, 2)[:, :, None])
    tl.store(out + place, g, mask=inside)


def sinkhorn_triton(comb_logits: Tensor, eps: float, iters: int) -> Tensor:
    """float32 [R, n, n] -> the same; n a power of two. See `sinkhorn_ref` for the meaning."""
    rows, n, _ = comb_logits.shape
    out = torch.empty_like(comb_logits)
    if rows:
        _forward[(triton.cdiv(rows, _BLOCK),)](comb_logits, out, rows, eps, iters, n, _BLOCK, num_warps=2)
    return out


def sinkhorn_backward_triton(comb_logits: Tensor, grad: Tensor, eps: float, iters: int) -> Tensor:
    """Gradient with respect to the logits."""
    rows, n, _ = comb_logits.shape
    out = torch.empty_like(comb_logits)
    if rows:
        divisors = comb_logits.new_empty(2 * iters - 1, rows, n)
        grid = (triton.cdiv(rows, _BLOCK),)
        _backward[grid](comb_logits, grad, divisors, out, rows, eps, iters, n, _BLOCK, num_warps=2)
    return out


@torch.library.custom_op("benthic::sinkhorn", mutates_args=())
def sinkhorn_cuda(comb_logits: Tensor, eps: float, iters: int) -> Tensor:
    """`sinkhorn_triton` as one opaque operator with a gradient."""
    return sinkhorn_triton(comb_logits, eps, iters)


@torch.library.custom_op("benthic::sinkhorn_backward", mutates_args=())
def sinkhorn_cuda_backward(comb_logits: Tensor, grad: Tensor, eps: float, iters: int) -> Tensor:
    """`sinkhorn_backward_triton` as one opaque operator."""
    return sinkhorn_backward_triton(comb_logits, grad, eps, iters)


@sinkhorn_cuda.register_fake
def _(comb_logits: Tensor, eps: float, iters: int) -> Tensor:
    return torch.empty_like(comb_logits)


@sinkhorn_cuda_backward.register_fake
def _(comb_logits: Tensor, grad: Tensor, eps: float, iters: int) -> Tensor:
    return torch.empty_like(comb_logits)


def _setup(ctx: Any, inputs: tuple[Tensor, float, int], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.eps, ctx.iters = inputs[1], inputs[2]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    (comb_logits,) = ctx.saved_tensors
    return sinkhorn_cuda_backward(comb_logits, grad.contiguous(), ctx.eps, ctx.iters), None, None


sinkhorn_cuda.register_autograd(_gradient, setup_context=_setup)
