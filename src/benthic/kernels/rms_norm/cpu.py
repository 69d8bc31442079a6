"""rms_norm on the CPU: one call, rows in a loop."""

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, kernel
from benthic.kernels.numba_math import LANES, ONE, sum_squares
from benthic.kernels.precision import wide


def rms_norm_cpu(x: Tensor, gain: Tensor | None, eps: float) -> Tensor:
    """See `rms_norm`. Rows of a wider buffer (a column slice) are read in place."""
    size = x.shape[-1]
    source = wide(x)
    if not (source.is_contiguous() or (source.dim() == 2 and source.stride(1) == 1)):
        source = source.contiguous()
    row_stride = source.stride(0) if source.dim() == 2 else size
    factors = None if gain is None else wide(gain).contiguous()
    result = torch.empty_like(source)  # contiguous: a column slice has gaps, and its gaps are not kept
    if result.numel():
        _rms_norm(
            source.data_ptr(),
            0 if factors is None else factors.data_ptr(),
            result.data_ptr(),
            result.numel() // size,
            size,
            row_stride,
            eps,
        )
    return result if x.dtype == torch.float32 else result.to(x.dtype)


@kernel
def _rms_norm(x_at: int, gain_at: int, y_at: int, rows: int, size: int, row_stride: int, eps: float) -> None:
    y = float32s(y_at, (rows, size))
    lanes = np.empty(LANES, np.float32)
    for row in range(rows):
        x = float32s(x_at + 4 * row * row_stride, (size,))
        factor = ONE / np.sqrt(sum_squares(x, lanes) / np.float32(size) + np.float32(eps))
        if gain_at:
            gain = float32s(gain_at, (size,))
            for i in range(size):
                y[row, i] = (x[i] * factor) * gain[i]
        else:
            for i in range(size):
                y[row, i] = x[i] * factor
