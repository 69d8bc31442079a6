"""y = x W^T, accumulated in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.precision import wide


def linear_ref(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """On CUDA a 16-bit result comes from a native 16-bit product; all else from a float32 product of the values."""
    if x.is_cuda and out_dtype == x.dtype:
        return F.linear(x, weight.to(x.dtype))
    x_wide = wide(x)
    return F.linear(x_wide, weight.to(x_wide.dtype)).to(out_dtype)
