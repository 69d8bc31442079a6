"""Sinkhorn normalisation with a gradient that recomputes.

C <- softmax over j, + eps; then divide by column sums + eps; then iters - 1 times by row sums + eps and by column
sums + eps (model.md 2.2 step 6). Autograd would keep 2 * iters - 1 matrices a site (20 MB for 4,096 rows); this
keeps the input.

Gradient of one step C' = C / S, S = sum(C) + eps over a dim: with h = g / S, dL/dC = h - sum(h * C') over the dim.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Normalize = Callable[[Tensor, float, int], Tensor]
Vjp = Callable[[Tensor, Tensor, float, int], Tensor]


def sinkhorn_ref(comb_logits: Tensor, eps: float, iters: int) -> Tensor:
    """[R, n, n] -> [R, n, n]: first index i, second j; rows sum over j, columns over i."""
    comb = comb_logits.softmax(-1) + eps
    for dim in _dims(iters):
        comb = comb / (comb.sum(dim, keepdim=True) + eps)
    return comb


def sinkhorn_vjp(comb_logits: Tensor, grad: Tensor, eps: float, iters: int) -> Tensor:
    """The gradient with respect to `comb_logits`, all steps recomputed."""
    probabilities = comb_logits.softmax(-1)
    results, sums = [probabilities + eps], []
    for dim in _dims(iters):
        sums.append(results[-1].sum(dim, keepdim=True) + eps)
        results.append(results[-1] / sums[-1])
    for dim, total, result in zip(reversed(_dims(iters)), reversed(sums), reversed(results), strict=False):
        share = grad / total
        grad = share - (share * result).sum(dim, keepdim=True)
    return probabilities * (grad - (grad * probabilities).sum(-1, keepdim=True))


def _dims(iters: int) -> list[int]:
    """Columns first, then (rows, columns) iters - 1 times."""
    return [-2] + [-1, -2] * (iters - 1)


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, comb_logits: Tensor, eps: float, iters: int, normalize: Normalize, vjp: Vjp) -> Tensor:
        ctx.save_for_backward(comb_logits)
        ctx.eps, ctx.iters, ctx.vjp = eps, iters, vjp
        return normalize(comb_logits, eps, iters)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        (comb_logits,) = ctx.saved_tensors
        return ctx.vjp(comb_logits, grads[0], ctx.eps, ctx.iters), None, None, None, None


def sinkhorn_recomputing(
    comb_logits: Tensor, eps: float, iters: int, normalize: Normalize = sinkhorn_ref, vjp: Vjp = sinkhorn_vjp
) -> Tensor:
    """`normalize(comb_logits, eps, iters)` (the reference or a kernel) with a gradient that keeps only the input."""
    result: Tensor = _Sinkhorn.apply(comb_logits, eps, iters, normalize, vjp)  # type: ignore[no-untyped-call]
    return result
