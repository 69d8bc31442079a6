"""swiglu on the CPU: one call, rows in a loop."""

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, kernel
from benthic.kernels.numba_math import ONE, exp32
from benthic.kernels.precision import wide


def swiglu_cpu(gate_up: Tensor, weights: Tensor | None, limit: float, out_dtype: torch.dtype) -> Tensor:
    """See `swiglu`. Rows of a wider buffer are read in place."""
    source = wide(gate_up)
    if source.stride(1) != 1:
        source = source.contiguous()
    factors = None if weights is None else wide(weights).contiguous()
    rows, width = source.shape[0], source.shape[1] // 2
    result = torch.empty((rows, width), dtype=torch.float32)
    if result.numel():
        factors_at = 0 if factors is None else factors.data_ptr()
        _swiglu(source.data_ptr(), factors_at, result.data_ptr(), rows, width, source.stride(0), limit)
    return result if out_dtype == torch.float32 else result.to(out_dtype)


@kernel
def _swiglu(x_at: int, weights_at: int, y_at: int, rows: int, width: int, row_stride: int, limit: float) -> None:
    most, least = np.float32(limit), np.float32(-limit)
    y = float32s(y_at, (rows, width))
    for row in range(rows):
        x = float32s(x_at + 4 * row * row_stride, (2 * width,))
        weight = float32s(weights_at, (rows,))[row] if weights_at else ONE
        gates, ups, products = x[:width], x[width:], y[row]
        for i in range(width):
            gate, up = min(gates[i], most), min(max(ups[i], least), most)
            products[i] = (gate * (ONE / (ONE + exp32(-gate))) * up) * weight
