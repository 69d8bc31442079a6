"""Few bfloat16 rows times FP8 weights on Hopper by CUDA C++ (widened_few.cu): the order and the bits of `widened`."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.linear.weights import Fp8Weight
from benthic.kernels.quantize.rows import GROUP, QuantizedRows

LIBRARY = CudaLibrary(Path(__file__).with_name("widened_few.cu"))
MOST_ROWS = 32


def takes(x: Tensor, weight: Fp8Weight) -> bool:
    """Whether the kernel reads rows [R, G, I] and weights [G, O, I]: some, not many, bfloat16, 16-byte aligned."""
    aligned = x.stride(2) == 1 and x.data_ptr() % 16 == 0 and all(step > 0 and step % 8 == 0 for step in x.stride()[:2])
    whole = weight.shape[1] % GROUP == 0 and weight.shape[2] % (4 * GROUP) == 0
    return x.dtype is torch.bfloat16 and 0 < x.shape[0] <= MOST_ROWS and aligned and whole


def multiply_widened_few(x: Tensor, weight: Fp8Weight) -> QuantizedRows:
    """Rows [R, G O] in FP8, scales powers of two, of x [R, G, I] and weight [G, O, I] that the kernel `takes`."""
    rows, groups, inputs = x.shape
    outputs = weight.shape[1]
    y = torch.empty(rows, groups * outputs, dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty(rows, groups * outputs // GROUP, device=x.device, dtype=torch.float32)
    with torch.cuda.device(x.device):
        _function()(
            x.data_ptr(), weight.data.data_ptr(), weight.scale.data_ptr(), y.data_ptr(), scale.data_ptr(),
            x.stride(0), x.stride(1), rows, groups, outputs, inputs,
            torch.cuda.current_stream(x.device).cuda_stream,
        )  # fmt: skip
    return QuantizedRows(y, scale)


@cache
def _function() -> Callable[..., None]:
    pointer, size, count = ctypes.c_void_p, ctypes.c_longlong, ctypes.c_int
    return LIBRARY.function("widened_multiply_few", [pointer] * 5 + [size] * 2 + [count] * 4 + [pointer])
