"""Cross-entropy of a linear head, block of rows by block of rows.

The forward pass makes each block's logits once, and from them both the loss and the gradients that a unit upstream
gradient would give; backward only scales. Logits of all rows never exist together.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benthic.kernels.linear import linear
from benthic.kernels.precision import wide


def row_blocks(num_rows: int, block_rows: int) -> list[tuple[int, int]]:
    """Ranges of at least `block_rows` rows (all rows if fewer), so that no block is too low to be exact."""
    starts = list(range(0, max(num_rows - block_rows, 0) + 1, block_rows))
    return list(zip(starts, [*starts[1:], num_rows], strict=True))


class LinearCrossEntropy(torch.autograd.Function):
    """(hidden [R, D], head [V, D], targets [R], weights [R]) -> sum_r weights[r] * -log p(targets[r])."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        weights: Tensor,
        block_rows: int,
        logprobs: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        needs_hidden, needs_head = ctx.needs_input_grad[:2]
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_head = torch.zeros_like(head, dtype=wide(head[:0]).dtype) if needs_head else None
        total = wide(hidden[:0]).new_zeros(())
        for start, end in row_blocks(hidden.shape[0], block_rows):
            rows, ids, weight = hidden[start:end], targets[start:end], weights[start:end]
            logits = linear(rows, head, out_dtype=total.dtype)
            total = total - (logprobs(logits, ids) * weight).sum()
            if not (needs_hidden or needs_head):
                continue
            grad_logits = logits.softmax(-1)
            grad_logits.scatter_add_(1, ids[:, None], grad_logits.new_full((end - start, 1), -1.0))
            grad_logits.mul_(weight[:, None])
            if grad_hidden is not None:
                grad_hidden[start:end] = (grad_logits @ head.to(total.dtype)).to(hidden.dtype)
            if grad_head is not None:
                grad_head.addmm_(grad_logits.t(), rows.to(total.dtype))
        ctx.save_for_backward(grad_hidden, grad_head)
        ctx.head_dtype = head.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        grad_hidden, grad_head = ctx.saved_tensors
        (grad,) = grads
        if grad_hidden is not None:
            grad_hidden = grad_hidden * grad.to(grad_hidden.dtype)
        if grad_head is not None:
            grad_head = (grad_head * grad).to(ctx.head_dtype)
        return grad_hidden, grad_head, None, None, None, None
