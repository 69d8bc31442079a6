"""The gradient of routing weights on the CPU: that of the reference with the experts that the kernel chose.

The choice itself has no gradient, and recomputing it could choose otherwise where two scores are one rounding apart.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benthic.kernels.moe_route.reference import Routing, Score, moe_route_ref

Weighing = tuple[int, float, Score, bool, float]


class _Route(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        kernel: Callable[..., Routing],
        bias: Tensor | None,
        experts: Tensor | None,
        weighing: Weighing,
    ) -> tuple[Tensor, Tensor]:
        weights, chosen = kernel(logits, bias, experts, *weighing)
        ctx.save_for_backward(logits, chosen)
        ctx.weighing = weighing
        ctx.mark_non_differentiable(chosen)
        return weights, chosen

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, experts = ctx.saved_tensors
        weighing: Weighing = ctx.weighing
        with torch.enable_grad():
            logits = logits.detach().requires_grad_()
            weights = moe_route_ref(logits, None, experts, *weighing, None).weights
        (grad,) = torch.autograd.grad(weights, logits, grads[0])
        return grad, None, None, None, None


def route(
    logits: Tensor, kernel: Callable[..., Routing], bias: Tensor | None, experts: Tensor | None, weighing: Weighing
) -> Routing:
    """kernel(logits, bias, experts, *weighing), with the reference's gradient for the weights.

    `weighing` is what weights depend on once experts are chosen: top_k, scale, score, normalize, floor.
    """
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return kernel(logits, bias, experts, *weighing)
    return Routing(*_Route.apply(logits, kernel, bias, experts, weighing))  # type: ignore[no-untyped-call]
