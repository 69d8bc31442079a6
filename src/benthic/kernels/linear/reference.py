"""y = x W^T, accumulated in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.precision import wide

# Products of fewer rows are padded to this many on the CPU: from here on libraries keep to one order of adding.
SAFE_ROWS = 16


def linear_ref(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """On CUDA a 16-bit result comes from a native 16-bit product; all else from a float32 product of the values."""
    if x.is_cuda and out_dtype == x.dtype:
        return F.linear(x, weight.to(x.dtype))
    x_wide = wide(x)
    weight = weight.to(x_wide.dtype)
    if x.is_cuda or not 0 < x.shape[0] < SAFE_ROWS:
        return F.linear(x_wide, weight).to(out_dtype)
    return F.linear(F.pad(x_wide, (0, 0, 0, SAFE_ROWS - x.shape[0])), weight)[: x.shape[0]].to(out_dtype)
