"""The door of scatter_rows."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_triton_kernel
from benthic.kernels.inputs import require_below, require_dtype
from benthic.kernels.scatter_rows.reference import scatter_rows_ref


def scatter_rows(target: Tensor, slots: Tensor, rows: Tensor, *, impl: Impl = "auto") -> None:
    """target[slots[r]] = rows[r] for every r whose slot is not -1; on CUDA one launch that the host never waits for.

    Args:
        target: [N, W], contiguous, written in place.
        slots: int64 [R], -1 or a slot of `target`; no slot twice.
        rows: [R, W] in the target's dtype.

    Raises:
        KernelInputError: shapes or dtypes do not fit.
    """
    if rows.shape != (len(slots), target.shape[-1]) or target.dim() != 2 or rows.dtype != target.dtype:
        raise KernelInputError(
            f"target is {target.dtype} {tuple(target.shape)}, slots {tuple(slots.shape)}, rows {rows.dtype} "
            f"{tuple(rows.shape)}; they must be [N, W], [R] and [R, W], rows of the target's dtype"
        )
    require_dtype(torch.int64, slots=slots)
    require_below("slots", slots, len(target), first=-1)
    if len(slots) == 0:
        return
    scatter = _triton() if uses_triton_kernel(impl, target) else scatter_rows_ref
    scatter(target, slots, rows)


@cache
def _triton() -> Callable[[Tensor, Tensor, Tensor], None]:
    from benthic.kernels.scatter_rows.kernel import scatter_rows_triton

    return scatter_rows_triton
