"""The gradient of an operation whose forward pass is a compiled kernel: that of its reference, recomputed.

Only the inputs are kept. The reference is recomputed in backward, so the numbers that its gradient sees differ from
the kernel's results by rounding and nothing else.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def with_reference_gradient(
    kernel: Callable[..., Any], reference: Callable[..., Any], inputs: tuple[Tensor | None, ...], *constants: Any
) -> Any:
    """kernel(*inputs, *constants); where a gradient is asked for, it is that of the reference on the same arguments.

    Both return a tensor, or a tuple of as many tensors.
    """
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in inputs):
        return kernel(*inputs, *constants)
    return _ReferenceGradient.apply(kernel, reference, constants, *inputs)  # type: ignore[no-untyped-call]


class _ReferenceGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        kernel: Callable[..., Any],
        reference: Callable[..., Any],
        constants: tuple[Any, ...],
        *inputs: Tensor | None,
    ) -> Any:
        ctx.reference, ctx.constants = reference, constants
        ctx.save_for_backward(*inputs)
        outputs = kernel(*inputs, *constants)
        return outputs if isinstance(outputs, Tensor) else tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[3:]
        inputs = [
            None if x is None else x.detach().requires_grad_(need)
            for x, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            outputs = ctx.reference(*inputs, *ctx.constants)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [
            (out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None and out.requires_grad
        ]
        wanted = [x for x, need in zip(inputs, needed, strict=True) if need and x is not None]
        found = iter(torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True))
        return None, None, None, *(next(found) if need else None for need in needed)
