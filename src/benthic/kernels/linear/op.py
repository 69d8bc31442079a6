"""The door of linear."""

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference
from benthic.kernels.linear.reference import linear_ref


def linear(x: Tensor, weight: Tensor, out_dtype: torch.dtype | None = None, *, impl: Impl = "auto") -> Tensor:
    """y = x W^T without bias.

    Args:
        x: [R, I], any float dtype.
        weight: [O, I], any float dtype; on the CPU usually float32 holding the file's values exactly.
        out_dtype: dtype of the result, `x.dtype` if None. float32 makes the product a float32 island.

    Returns:
        [R, O]. On CPU and in islands: float32 product of the values, rounded once. On CUDA: native product of
        `x.dtype` with float32 accumulation.

    Raises:
        KernelInputError: the shapes do not fit.

    A row has the same bits in any batch if R >= the rows found by `exactness.establish_min_rows`.
    """
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise KernelInputError(
            f"x has shape {tuple(x.shape)} and weight {tuple(weight.shape)}; they must be [R, I] and [O, I]"
        )
    require_reference(impl, "linear")
    return linear_ref(x, weight, x.dtype if out_dtype is None else out_dtype)
