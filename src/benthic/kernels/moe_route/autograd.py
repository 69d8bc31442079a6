"""The gradient of routing weights on the CPU: that of the reference with the experts that the kernel chose.

The choice itself has no gradient, and recomputing it could choose otherwise where two scores are one rounding apart.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benthic.kernels.moe_route.reference import Routing, Score, moe_route_ref


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, kernel: Callable[[Tensor], Routing], scale: float, score: Score, normalize: bool
    ) -> tuple[Tensor, Tensor]:
        weights, experts = kernel(logits)
        ctx.save_for_backward(logits, experts)
        ctx.options = (experts.shape[1], scale, score, normalize)
        ctx.mark_non_differentiable(experts)
        return weights, experts

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, experts = ctx.saved_tensors
        with torch.enable_grad():
            logits = logits.detach().requires_grad_()
            weights = moe_route_ref(logits, None, experts, *ctx.options).weights
        (grad,) = torch.autograd.grad(weights, logits, grads[0])
        return grad, None, None, None, None


def route(logits: Tensor, kernel: Callable[[Tensor], Routing], scale: float, score: Score, normalize: bool) -> Routing:
    """kernel(logits), with the reference's gradient for the weights."""
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return kernel(logits)
    return Routing(*_Route.apply(logits, kernel, scale, score, normalize))  # type: ignore[no-untyped-call]
