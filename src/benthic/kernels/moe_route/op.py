"""The door of moe_route."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.inputs import require_below, require_choice
from benthic.kernels.moe_route.autograd import route
from benthic.kernels.moe_route.reference import GroupLimit, Routing, Score, moe_route_ref, router_scores

__all__ = ["GroupLimit", "Routing", "Score", "moe_route", "router_scores"]


def moe_route(
    logits: Tensor,
    *,
    top_k: int,
    scale: float,
    score: Score = "sqrtsoftplus",
    bias: Tensor | None = None,
    experts: Tensor | None = None,
    normalize: bool = True,
    floor: float = 0.0,
    limit: GroupLimit | None = None,
    impl: Impl = "auto",
) -> Routing:
    """Chooses experts and weighs them.

    s = score(logits); experts = top-k of s + bias within the best groups; weights = s[experts] / sum s[experts] * scale

    Args:
        logits: float32 [R, E] (float64 for gradient checks).
        top_k: experts a row, K <= E.
        scale: `routed_scaling_factor`, applied after normalising.
        score: "sqrtsoftplus" (V4), "sigmoid" (V3) or "softmax" (V2).
        bias: float32 [E] or None; moves the selection, never the weights.
        experts: int64 [R, K] or None; given for hash routing and for replay, then nothing is selected.
        normalize: divide by the sum over the chosen, plus `floor` (V3: 1e-20).
        limit: choose within each row's best groups only, a group being a run of E / groups experts; None: among all.

    Returns:
        Weights and experts. Ties go to the lower expert, and to the lower group. Weights are finite for all finite
        logits, and carry gradient; the selection has none.

    Raises:
        KernelInputError: shapes, dtype, K or groups do not fit.

    Source: model.md 2.8, family.md 4. The same row has the same bits in any batch.
    """
    check_route(logits, top_k, bias, experts, limit)
    require_choice("score", score, Score)
    weighing = (top_k, scale, score, normalize, floor)
    if uses_triton_kernel(impl, logits):
        return route(logits, partial(_triton(), limit=limit), bias, experts, weighing)
    if not uses_cpu_kernel(impl, logits):
        return moe_route_ref(logits, bias, experts, *weighing, limit)
    return route(logits, partial(_cpu(), limit=limit), bias, experts, weighing)


@cache
def _triton() -> Callable[..., Any]:
    from benthic.kernels.moe_route.kernel import moe_route_triton

    return moe_route_triton


@cache
def _cpu() -> Callable[..., Any]:
    from benthic.kernels.moe_route.cpu import moe_route_cpu

    return moe_route_cpu


def check_route(
    logits: Tensor, top_k: int, bias: Tensor | None, experts: Tensor | None, limit: GroupLimit | None
) -> None:
    """Raises KernelInputError where shapes, dtype, K or groups do not fit."""
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
    if experts is not None:
        require_below("experts", experts, logits.shape[1])
    if limit is not None:
        _check_limit(limit, logits.shape[1], top_k)


def _check_limit(limit: GroupLimit, num_experts: int, top_k: int) -> None:
    if limit.groups < 1 or num_experts % limit.groups:
        raise KernelInputError(f"groups ({limit.groups}) must divide the number of experts ({num_experts})")
    size = num_experts // limit.groups
    if not 1 <= limit.best <= size:
        raise KernelInputError(f"best ({limit.best}) must be between 1 and the experts of a group ({size})")
    if not 1 <= limit.kept <= limit.groups or limit.kept * size < top_k:
        raise KernelInputError(
            f"kept ({limit.kept}) of {limit.groups} groups of {size} experts must be at most all of them, and hold at "
            f"least top_k ({top_k}) experts"
        )
