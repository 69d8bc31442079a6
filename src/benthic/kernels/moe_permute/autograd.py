"""Dispatch and combine with gathers for gradients.

The gradient of `index_select` adds rows with atomics on CUDA, in an order that changes from run to run. Dispatch and
combine are each other's transposes and the permutation knows both directions, so both backwards are gathers.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benthic.kernels.moe_permute.reference import Permutation, moe_combine_ref
from benthic.kernels.precision import wide

Summing = Callable[[Tensor, Tensor | None, Tensor], Tensor]


class Dispatch(torch.autograd.Function):
    """x [R, D] -> [N, D]; the gradient of a row is the sum over its picks' slots."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, source: Tensor, slot: Tensor) -> Tensor:
        ctx.save_for_backward(slot)
        return x.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slot,) = ctx.saved_tensors
        (grad,) = grads
        return moe_combine_ref(grad, None, slot).to(grad.dtype), None, None


class Combine(torch.autograd.Function):
    """y [N, D] -> [R, D]; the gradient of a slot is its row's, times its weight; that of a filler is zero."""

    @staticmethod
    def forward(ctx: Any, summing: Summing, y: Tensor, weights: Tensor | None, slot: Tensor, *slots: Tensor) -> Tensor:
        ctx.save_for_backward(y if weights is not None else y.new_empty(0), weights, slot, *slots)
        ctx.dtype = y.dtype
        return summing(y, weights, slot)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        y, weights, slot, source, pick, filler = ctx.saved_tensors
        (grad,) = grads
        grad_y = grad.index_select(0, source).masked_fill(filler[:, None], 0)
        if weights is None:
            return None, grad_y.to(ctx.dtype), None, None, None, None, None
        grad_weights = None
        if ctx.needs_input_grad[2]:
            dots = (wide(y) * grad_y).sum(-1)
            grad_weights = dots.gather(0, slot.reshape(-1)).view(slot.shape).to(weights.dtype)
        grad_y = grad_y * weights.reshape(-1).gather(0, pick).to(grad.dtype)[:, None]
        return None, grad_y.to(ctx.dtype), grad_weights, None, None, None, None


def dispatch(x: Tensor, permutation: Permutation) -> Tensor:
    result: Tensor = Dispatch.apply(x, permutation.source, permutation.slot)  # type: ignore[no-untyped-call]
    return result


def combine(summing: Summing, y: Tensor, weights: Tensor | None, permutation: Permutation) -> Tensor:
    source, pick, slot, _, filler = permutation
    result: Tensor = Combine.apply(summing, y, weights, slot, source, pick, filler)  # type: ignore[no-untyped-call]
    return result
