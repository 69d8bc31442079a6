"""The doors of moe_permute: plan, dispatch, combine."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.inputs import require_below, require_dtype, require_floats
from benthic.kernels.moe_permute.autograd import combine, dispatch
from benthic.kernels.moe_permute.reference import Permutation, moe_combine_ref, moe_permute_ref
from benthic.kernels.reference_gradient import with_reference_gradient

__all__ = ["Permutation", "moe_combine", "moe_dispatch", "moe_permute"]


def moe_permute(experts: Tensor, num_experts: int, min_rows: int, *, impl: Impl = "auto") -> Permutation:
    """Sorts picks by expert, stably, and gives every expert that has any at least `min_rows` slots.

    Args:
        experts: int64 [R, K], values 0 .. num_experts - 1.
        num_experts: E.
        min_rows: slots of a non-empty group at least; 0 or 1 means no fillers.

    Returns:
        A Permutation. On the CPU N is what the groups need. On CUDA N = R*K + E*(min_rows - 1), whatever the data,
        and the last group owns the excess; nothing is read by the host.

    Raises:
        KernelInputError: not int64 [R, K]; on the CPU also values outside.
    """
    if experts.dim() != 2 or experts.dtype != torch.int64:
        raise KernelInputError(f"experts are {experts.dtype} {tuple(experts.shape)}; they must be int64 [R, K]")
    if num_experts < 1:
        raise KernelInputError(f"num_experts is {num_experts}; it must be at least 1")
    require_below("experts", experts, num_experts)
    if min_rows <= 1 and experts.numel() and uses_triton_kernel(impl, experts):
        return _triton()[0](experts, num_experts)
    if uses_cpu_kernel(impl, experts):
        return _cpu_permute()(experts, num_experts, min_rows)
    most = experts.numel() + num_experts * max(min_rows - 1, 0)
    return moe_permute_ref(experts, num_experts, min_rows, most if experts.is_cuda else None)


def moe_dispatch(x: Tensor, permutation: Permutation) -> Tensor:
    """x [R, D] -> [N, D]: the row of each slot (fillers repeat row 0).

    The gradient is deterministic; that of fillers is dropped, for nothing reads them.
    """
    if not x.requires_grad:
        return x.index_select(0, permutation.source)
    return dispatch(x, permutation)


def moe_combine(y: Tensor, slot: Tensor | Permutation, weights: Tensor | None = None, *, impl: Impl = "auto") -> Tensor:
    """sum_k weights[r, k] * y[slot[r, k]], added in order k = 0 .. K-1.

    Args:
        y: [N, D], any float dtype.
        slot: the Permutation (its gradient is then a gather), or only int64 [R, K].
        weights: float32 [R, K] or None if they were applied before (`swiglu`).

    Returns:
        [R, D] in at least float32, so that the shared expert can be added before the cast.
    """
    slots = slot.slot if isinstance(slot, Permutation) else slot
    if y.dim() != 2 or slots.dim() != 2 or (weights is not None and weights.shape != slots.shape):
        raise KernelInputError(
            f"y has shape {tuple(y.shape)}, slot {tuple(slots.shape)}, "
            f"weights {None if weights is None else tuple(weights.shape)}; they must be [N, D], [R, K], [R, K]"
        )
    require_floats(y=y, weights=weights)
    if not isinstance(slot, Permutation):
        require_dtype(torch.int64, slot=slots)
        require_below("slot", slots, y.shape[0])
    is_wide = weights is None or weights.dtype is torch.float32
    if is_wide and y.dtype is not torch.float64 and uses_triton_kernel(impl, y):
        summing = _triton()[1]
    else:
        summing = _cpu_combine() if uses_cpu_kernel(impl, y) else moe_combine_ref
    needs_gradient = torch.is_grad_enabled() and (y.requires_grad or (weights is not None and weights.requires_grad))
    if not needs_gradient:
        return summing(y, weights, slots)
    if isinstance(slot, Permutation):
        return combine(summing, y, weights, slot)
    return with_reference_gradient(summing, moe_combine_ref, (y, weights), slots)


@cache
def _cpu_permute() -> Callable[..., Permutation]:
    from benthic.kernels.moe_permute.cpu import moe_permute_cpu

    return moe_permute_cpu


@cache
def _cpu_combine() -> Callable[..., Tensor]:
    from benthic.kernels.moe_permute.cpu import moe_combine_cpu

    return moe_combine_cpu


@cache
def _triton() -> tuple[Callable[..., Permutation], Callable[..., Tensor]]:
    from benthic.kernels.moe_permute.kernel import moe_combine_triton, moe_permute_triton

    return moe_permute_triton, moe_combine_triton
