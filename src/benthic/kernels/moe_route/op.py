"""The door of moe_route."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel
from benthic.kernels.moe_route.autograd import route
from benthic.kernels.moe_route.reference import Routing, Score, moe_route_ref

__all__ = ["Routing", "Score", "moe_route"]


def moe_route(
    logits: Tensor,
    *,
    top_k: int,
    scale: float,
    score: Score = "sqrtsoftplus",
    bias: Tensor | None = None,
    experts: Tensor | None = None,
    normalize: bool = True,
    impl: Impl = "auto",
) -> Routing:
    """Chooses experts and weighs them.

    s = score(logits); experts = top-k of s + bias; weights = s[experts] / sum s[experts] * scale.

    Args:
        logits: float32 [R, E] (float64 for gradient checks).
        top_k: experts a row, K <= E.
        scale: `routed_scaling_factor`, applied after normalising.
        score: "sqrtsoftplus" (V4), "sigmoid" (V3) or "softmax" (V2).
        bias: float32 [E] or None; moves the selection, never the weights.
        experts: int64 [R, K] or None; given for hash routing and for replay, then nothing is selected.
        normalize: divide by the sum over the chosen.

    Returns:
        Weights and experts. Ties go to the lower expert. Weights are finite for all finite logits, and carry
        gradient; the selection has none.

    Raises:
        KernelInputError: shapes, dtype or K do not fit.

    Source: model.md 2.8. The same row has the same bits in any batch.
    """
    _check(logits, top_k, bias, experts)
    if not uses_cpu_kernel(impl, logits):
        return moe_route_ref(logits, bias, experts, top_k, scale, score, normalize)
    kernel = partial(_cpu(), bias=bias, experts=experts, top_k=top_k, scale=scale, score=score, normalize=normalize)
    return route(logits, kernel, scale, score, normalize)


@cache
def _cpu() -> Callable[..., Any]:
    from benthic.kernels.moe_route.cpu import moe_route_cpu

    return moe_route_cpu


def _check(logits: Tensor, top_k: int, bias: Tensor | None, experts: Tensor | None) -> None:
    if logits.dim() != 2 or logits.dtype not in (torch.float32, torch.float64):
        raise KernelInputError(f"logits are {logits.dtype} {tuple(logits.shape)}; they must be float32 [R, E]")
    if not 1 <= top_k <= logits.shape[1]:
        raise KernelInputError(f"top_k ({top_k}) must be between 1 and the number of experts ({logits.shape[1]})")
    if bias is not None and bias.shape != logits.shape[1:]:
        raise KernelInputError(f"bias has shape {tuple(bias.shape)}; it must be [{logits.shape[1]}]")
    if experts is not None and (experts.dtype != torch.int64 or experts.shape != (logits.shape[0], top_k)):
        raise KernelInputError(
            f"experts are {experts.dtype} {tuple(experts.shape)}; they must be int64 [{logits.shape[0]}, {top_k}]"
        )
