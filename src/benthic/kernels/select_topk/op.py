"""The door of top-k selection."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_cuda_kernel
from benthic.kernels.inputs import require_floats
from benthic.kernels.select_topk.cuda import select_topk_cuda
from benthic.kernels.select_topk.reference import select_topk_ref


def select_topk(scores: Tensor, k: int, *, impl: Impl = "auto") -> Tensor:
    """Picks the k best entries of every row; ties go to the lower index (model.md 2.6 step 6).

    Args:
        scores: [..., N]; -inf marks entries that are not visible, which are never picked. No NaN.
        k: how many to keep, at least 1.

    Returns:
        int32 [..., min(k, N)]: indices, ascending; where fewer are visible, -1 fills the end. The set depends on a
        row's visible scores only, not on N. Selection has no gradient.
    """
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise KernelInputError(f"k ({k}) must be a whole number of at least 1")
    if not scores.dim():
        raise KernelInputError("scores are a single number; they must be [..., N]")
    require_floats(scores=scores)
    scores = scores.detach()
    if scores.dtype is not torch.float64 and uses_cuda_kernel(impl, scores):
        return select_topk_cuda(scores, k)
    if not uses_cpu_kernel(impl, scores):
        return select_topk_ref(scores, k)
    return _cpu()(scores, k)


@cache
def _cpu() -> Callable[[Tensor, int], Tensor]:
    from benthic.kernels.select_topk.cpu import select_topk_cpu

    return select_topk_cpu
