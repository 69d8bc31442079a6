"""bf16 products on Hopper by CUDA C++ (product.cu, wide.cu): the order and the bits of `kernel.multiply`."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.linear.schedule import Order, order_of
from benthic.kernels.linear.wide import MOST_CLUSTERED, Form, form_of, multiply_wide, stride_of

_LIBRARY = CudaLibrary(Path(__file__).with_name("product.cu"))
_MOST_SPREAD = 8
"""Segments of a cluster."""
_TILE_OUTPUTS, _TILE_ROWS = 128, 128


def takes(x: Tensor, weight: Tensor) -> bool:
    """True if the kernel can read rows [R, G, I] and weights [G, O, I]: bf16, inputs contiguous, 16-byte aligned."""
    return (
        x.dtype is weight.dtype is torch.bfloat16
        and x.shape[2] >= 64
        and all(_is_aligned(operand) for operand in (x, weight))
    )


def is_worthwhile(rows: int, weight: Tensor, out_dtype: torch.dtype) -> bool:
    """True where this kernel was measured to be no slower than Triton's, which has the same bits."""
    groups, outputs, inputs = weight.shape
    order, processors = order_of(outputs, inputs, weight.dtype), _processors(weight.device.index or 0)
    if form_of(rows, groups, outputs, order, out_dtype, processors) is not None:
        return True
    if order.segments == 1:
        return rows < 1024 or inputs > 1024  # a short chain does not pay for results written by those who multiply
    if inputs > 4096:
        return groups == 1 and rows <= 16
    if groups > 1:
        return _spread(rows, groups, outputs, order, processors) == 4
    return rows <= 16 or (rows >= 128 and outputs >= 1536)


def multiply_cuda(
    x: Tensor,
    weight: Tensor,
    out_dtype: torch.dtype,
    order: Order | None = None,
    form: Form | Literal["few"] | None = None,
) -> Tensor:
    """y[:, g] = x[:, g] W_g^T; bf16 x [R, G, I] and weight [G, O, I] -> [R, G, O] in bf16 or float32.

    `order` is for measuring what the order of the weight costs, `form` for forms of many rows; "few": product.cu's.

    Raises:
        KernelInputError: the kernel does not take these (`takes`).
    """
    if not takes(x, weight):
        raise KernelInputError(
            f"impl='cuda' got {x.dtype} {tuple(x.shape)} by {x.stride()} and {weight.dtype} {tuple(weight.shape)} by "
            f"{weight.stride()}; it takes bfloat16 with at least 64 contiguous inputs, rows at multiples of 16 bytes"
        )
    rows, groups, inputs = x.shape
    outputs = weight.shape[1]
    y = torch.empty((rows, groups, outputs), dtype=out_dtype, device=x.device)
    if not y.numel():
        return y
    order = order_of(outputs, inputs, x.dtype) if order is None else order
    processors = _processors(x.device.index or 0)
    form = form_of(rows, groups, outputs, order, out_dtype, processors) if form is None else form
    each = _spread(rows, groups, outputs, order, processors)
    if not isinstance(form, Form) and order.segments > 1 and not each:
        form = Form(128)
    if isinstance(form, Form):
        multiply_wide(x, weight, y, order, form, processors)
        return y
    _function()(
        x.data_ptr(), weight.data_ptr(), y.data_ptr(), out_dtype is torch.float32, rows, groups, outputs, inputs,
        stride_of(x, 0), stride_of(x, 1), stride_of(weight, 1), stride_of(weight, 0),
        order.segments, order.segment_len // 64, each, processors, torch.cuda.current_stream(x.device).cuda_stream,
    )  # fmt: skip
    return y


def _spread(rows: int, groups: int, outputs: int, order: Order, processors: int) -> int:
    """How many segments a program of a cluster takes where tiles are few: as many clusters as run at once. Else 0."""
    tiles = groups * -(-rows // _TILE_ROWS) * -(-outputs // _TILE_OUTPUTS)
    if not 1 < order.segments <= _MOST_SPREAD or tiles >= processors:
        return 0
    if tiles * order.segments <= (processors if order.segments == 2 else MOST_CLUSTERED):
        return 1
    return 4 if order.segments == 8 and rows <= 64 and tiles * 4 > processors else 2


def _is_aligned(operand: Tensor) -> bool:
    strides = [operand.stride(dim) for dim in (0, 1) if operand.shape[dim] > 1]
    return operand.stride(2) == 1 and operand.data_ptr() % 16 == 0 and all(s % 8 == 0 and s > 0 for s in strides)


@cache
def _processors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@cache
def _function() -> Callable[..., None]:
    addresses, numbers = [ctypes.c_void_p] * 3, [ctypes.c_long] * 8
    types = [*addresses, ctypes.c_int, *numbers, *[ctypes.c_int] * 4, ctypes.c_void_p]
    return _LIBRARY.function("multiply_bf16", types)
