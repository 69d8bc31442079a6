"""The door of grouped_linear."""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from benthic.errors import KernelInputError, shown
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_triton_kernel
from benthic.kernels.grouped_linear.fp8 import grouped_fp8_linear
from benthic.kernels.grouped_linear.reference import grouped_linear_ref
from benthic.kernels.inputs import require_floats
from benthic.kernels.linear import Fp8Weight, is_by_columns
from benthic.kernels.precision import wide
from benthic.kernels.quantize import QuantizedRows

# Rows an expert, on average, up to which one call for all experts beats a library product for each.
FEW_ROWS = 8


def grouped_linear(
    x: Tensor | QuantizedRows,
    weight: Tensor | Fp8Weight,
    group_ends: Tensor,
    out_dtype: torch.dtype | None = None,
    *,
    impl: Impl = "auto",
) -> Tensor:
    """y = x W_e^T where e is the expert that owns the row.

    Args:
        x: [N, I], rows sorted by expert; any float dtype, or FP8 if the weight is.
        weight: [E, O, I]; serving lays it out `by_columns`. Or in FP8.
        group_ends: int32 [E]; expert e owns rows group_ends[e-1] .. group_ends[e]-1 (from 0 for the first). The last
            end is N.
        out_dtype: of products in FP8: bfloat16 if None. Others have the dtype of `x`.

    Returns:
        [N, O]. CPU: float32 products of the values. On CUDA: products of values in `x.dtype` with
        float32 accumulation, without the host reading the ends. Experts without rows cost nothing.

    Raises:
        KernelInputError: the shapes do not fit; on the CPU also ends that descend, or whose last is not N.

    A row has the same bits in any batch and grouping, those of `linear` with its expert's weight.
    """
    if (
        len(x.shape) != 2
        or len(weight.shape) != 3
        or x.shape[1] != weight.shape[2]
        or group_ends.shape != weight.shape[:1]
    ):
        raise KernelInputError(
            f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}, group_ends {tuple(group_ends.shape)}; "
            "they must be [N, I], [E, O, I], [E]"
        )
    if group_ends.dtype not in (torch.int32, torch.int64):
        raise KernelInputError(f"group_ends are {group_ends.dtype}; they must be int32")
    _check_ends(group_ends, x.shape[0])
    if isinstance(x, QuantizedRows) and isinstance(weight, Fp8Weight):
        return grouped_fp8_linear(x, weight, group_ends, out_dtype or torch.bfloat16, impl)
    if isinstance(x, QuantizedRows) or isinstance(weight, Fp8Weight):
        raise KernelInputError("one of x and weight is in FP8 and the other is not; both must be, or neither")
    require_floats(x=x, weight=weight)
    if out_dtype not in (None, x.dtype):
        raise KernelInputError(f"out_dtype is {out_dtype}; products of {x.dtype} rows are {x.dtype}")
    needs_gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    if uses_triton_kernel(impl, x, is_operator=True):
        return _on_cuda(needs_gradient)(x, weight.to(x.dtype), group_ends.to(torch.int32).contiguous())
    if not uses_cpu_kernel(impl, x) or needs_gradient or not is_by_columns(weight):
        return grouped_linear_ref(x, weight, group_ends)
    rows = wide(x)
    ends = group_ends.tolist()
    hit = sum(end > start for start, end in zip([0, *ends], ends, strict=False))
    if x.shape[0] <= FEW_ROWS * hit:
        return _cpu()(rows if rows.stride(1) == 1 else rows.contiguous(), weight, group_ends).to(x.dtype)
    return grouped_linear_ref(x, weight, group_ends)


def _check_ends(group_ends: Tensor, num_rows: int) -> None:
    """On the CPU alone: the host does not wait for a GPU's ends."""
    if not group_ends.is_cpu or torch.compiler.is_compiling():
        return
    ends = group_ends.tolist()
    if [0, *ends] != sorted([0, *ends]) or (ends[-1] if ends else 0) != num_rows:
        raise KernelInputError(
            f"group_ends are {shown(ends)}; they must ascend from 0 and end with the {num_rows} rows"
        )


def _on_cuda(needs_gradient: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    from benthic.kernels.grouped_linear.kernel import multiply_grouped, multiply_grouped_trained

    return multiply_grouped_trained if needs_gradient or torch.compiler.is_compiling() else multiply_grouped


@cache
def _cpu() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    from benthic.kernels.linear.cpu import few_rows_grouped

    return few_rows_grouped
