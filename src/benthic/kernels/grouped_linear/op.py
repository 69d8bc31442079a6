"""The door of grouped_linear."""

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference
from benthic.kernels.grouped_linear.reference import grouped_linear_ref


def grouped_linear(x: Tensor, weight: Tensor, group_ends: Tensor, *, impl: Impl = "auto") -> Tensor:
    """y = x W_e^T where e is the expert that owns the row.

    Args:
        x: [N, I], rows sorted by expert.
        weight: [E, O, I].
        group_ends: int32 [E]; expert e owns rows group_ends[e-1] .. group_ends[e]-1 (from 0 for the first). The last
            end is N.

    Returns:
        [N, O] in the dtype of `x`. CPU: float32 products of the values; experts without rows cost nothing.

    Raises:
        KernelInputError: the shapes do not fit.

    A row has the same bits in any batch if its group has at least the rows found by `exactness.establish_min_rows`.
    """
    if x.dim() != 2 or weight.dim() != 3 or x.shape[1] != weight.shape[2] or group_ends.shape != weight.shape[:1]:
        raise KernelInputError(
            f"x has shape {tuple(x.shape)}, weight {tuple(weight.shape)}, group_ends {tuple(group_ends.shape)}; "
            "they must be [N, I], [E, O, I], [E]"
        )
    require_reference(impl, "grouped_linear")
    if x.is_cuda and x.dtype == torch.bfloat16:
        ends = group_ends.to(torch.int32)
        return torch.nn.functional.grouped_mm(x, weight.to(x.dtype).transpose(1, 2), offs=ends)
    return grouped_linear_ref(x, weight, group_ends)
