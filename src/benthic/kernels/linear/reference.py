"""y = x W^T, accumulated in float32."""

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.kernels.linear.weights import BLOCK, Fp8Weight
from benthic.kernels.precision import wide
from benthic.kernels.quantize import QuantizedRows

# Products of fewer rows are padded to this many on the CPU: from here on libraries keep to one order of adding.
SAFE_ROWS = 16


def linear_ref(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """On CUDA a 16-bit result comes from a native 16-bit product; all else from a float32 product of the values."""
    if x.is_cuda and out_dtype == x.dtype:
        return F.linear(x, weight.to(x.dtype))
    x_wide = wide(x)
    weight = weight.to(x_wide.dtype)
    return (F.linear(x_wide, weight) if x.is_cuda else _padded_product(x_wide, weight)).to(out_dtype)


def fp8_linear_ref(x: QuantizedRows, weight: Fp8Weight, out_dtype: torch.dtype) -> Tensor:
    """For each 128 of I, ascending: acc += (codes . codes in float32) * (row scale * tile scale); rounded once."""
    total = torch.zeros((x.shape[0], weight.shape[0]), dtype=torch.float32, device=x.device)
    tile = torch.arange(weight.shape[0], device=x.device) // BLOCK
    for k, start in enumerate(range(0, x.shape[1], BLOCK)):
        step = slice(start, start + BLOCK)
        partial = linear_ref(x.data[:, step].float(), weight.data[:, step].float(), torch.float32)
        total = total + partial * (x.scale[:, k, None] * weight.scale[tile, k])
    return total.to(out_dtype)


def _padded_product(x: Tensor, weight: Tensor) -> Tensor:
    """At least 16 rows; and two outputs, since one is a library's other order again, at any number of rows."""
    rows, outputs = x.shape[0], weight.shape[0]
    if outputs == 1:
        return _padded_product(x, torch.cat((weight, weight)))[:, :1]
    if not 0 < rows < SAFE_ROWS:
        return F.linear(x, weight)
    return F.linear(F.pad(x, (0, 0, 0, SAFE_ROWS - rows)), weight)[:rows]
