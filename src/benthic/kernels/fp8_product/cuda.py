"""FP8 products on Hopper: the CUDA C++ kernel of fp8_product.cu."""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.fp8_product.tiles import MULTIPROCESSORS, Shape, shape_of
from benthic.kernels.quantize import QuantizedRows

SOURCE = Path(__file__).with_name("fp8_product.cu")
# Row tiles that walk the outputs together, so that their weights are read from memory once.
BAND = 16


def multiply_fp8(
    x: QuantizedRows,
    data: Tensor,
    tile_scale: Tensor | None,
    base: Tensor | None,
    group_ends: Tensor | None,
    out_dtype: torch.dtype,
    shape: Shape | None = None,
) -> Tensor:
    """[N, O] of x [N, I] and e4m3 [E, O, I]; fp8_product.cu tells the order. `shape` is for tests.

    Args:
        tile_scale: float32 [E, ceil(O / 128), I / 128] or None.
        base: float32 [E, O] or None.
        group_ends: int32 [E] on the device, or None for one expert of all rows.
        out_dtype: bfloat16 or float32.
    """
    groups, outputs, inputs = data.shape
    rows = x.shape[0]
    y = torch.empty((rows, outputs), dtype=out_dtype, device=x.device)
    if not y.numel():
        return y
    shape = shape_of(rows, outputs, groups) if shape is None else shape
    tiles = -(-rows // shape.rows) * -(-outputs // shape.outputs)
    programs = MULTIPROCESSORS if group_ends is not None else min(tiles, MULTIPROCESSORS)
    is_streamed = rows <= (shape.rows if group_ends is None else shape.rows * groups // 2)
    row_data, row_scale = x.data.contiguous(), x.scale.contiguous()
    with torch.cuda.device(x.device):
        _multiply()(
            row_data.data_ptr(), row_scale.data_ptr(), data.data_ptr(),
            None if tile_scale is None else tile_scale.data_ptr(), None if base is None else base.data_ptr(),
            None if group_ends is None else group_ends.data_ptr(), y.data_ptr(),
            rows, outputs, inputs, groups, out_dtype is torch.float32, shape.number, programs, BAND, is_streamed,
            True, torch.cuda.current_stream(x.device).cuda_stream,
        )  # fmt: skip
    return y


@cache
def _multiply() -> Callable[..., None]:
    address, integer = ctypes.c_void_p, ctypes.c_int
    return CudaLibrary(SOURCE).function("fp8_multiply", [address] * 7 + [integer] * 10 + [address])
