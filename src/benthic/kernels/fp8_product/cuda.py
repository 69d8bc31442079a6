"""FP8 products on Hopper: the CUDA C++ kernel of fp8_product.cu."""

from pathlib import Path

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.fp8_product.calling import address, function, stream_of
from benthic.kernels.fp8_product.few import multiply_few, multiply_gated_few
from benthic.kernels.fp8_product.tiles import MULTIPROCESSORS, SHAPES, Shape, is_few, shape_of
from benthic.kernels.quantize import QuantizedRows

LIBRARY = CudaLibrary(Path(__file__).with_name("fp8_product.cu"))
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
    if shape is None and rows and is_few(rows, outputs, inputs, groups):
        return multiply_few(x, data, tile_scale, base, out_dtype)
    y = torch.empty((rows, outputs), dtype=out_dtype, device=x.device)
    if not y.numel():
        return y
    shape = shape_of(rows, outputs, inputs, groups) if shape is None else shape
    most = MULTIPROCESSORS // shape.cluster
    programs = (most if group_ends is not None else min(shape.num_tiles(rows, outputs), most)) * shape.cluster
    is_streamed = rows <= (shape.rows if group_ends is None else shape.rows * groups // 2)
    row_data, row_scale = x.data.contiguous(), x.scale.contiguous()
    with torch.cuda.device(x.device):
        function(LIBRARY, "fp8_multiply", "p" * 7 + "i" * 10 + "p")(
            row_data.data_ptr(), row_scale.data_ptr(), data.data_ptr(),
            address(tile_scale), address(base), address(group_ends), y.data_ptr(),
            rows, outputs, inputs, groups, out_dtype is torch.float32, shape.number, programs, BAND, is_streamed,
            True, stream_of(x.device),
        )  # fmt: skip
    return y


def multiply_gated_fp8(
    x: QuantizedRows,
    data: Tensor,
    tile_scale: Tensor | None,
    base: Tensor | None,
    group_ends: Tensor | None,
    row_weight: Tensor | None,
    picks: Tensor | None,
    limit: float,
) -> QuantizedRows:
    """FP8 rows [N, F] of x [N, I] and e4m3 [E, 2F, I] in eights of gate and up; see `op.fp8_gated_product`."""
    groups, outputs, inputs = data.shape
    rows = x.shape[0]
    if rows and is_few(rows, 0, inputs, groups):
        return multiply_gated_few(x, data, tile_scale, base, row_weight, picks, limit)
    codes = torch.empty((rows, outputs // 2), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty((rows, outputs // 256), dtype=torch.float32, device=x.device)
    if not codes.numel():
        return QuantizedRows(codes, scale)
    shape = SHAPES[9]
    programs = MULTIPROCESSORS
    if group_ends is None:
        programs = min(shape.num_tiles(rows, outputs), programs)
    row_data, row_scale = x.data.contiguous(), x.scale.contiguous()
    with torch.cuda.device(x.device):
        function(LIBRARY, "fp8_multiply_gated", "p" * 10 + "i" * 4 + "f" + "i" * 3 + "p")(
            row_data.data_ptr(), row_scale.data_ptr(), data.data_ptr(), address(tile_scale), address(base),
            address(group_ends), address(row_weight), address(picks), codes.data_ptr(), scale.data_ptr(),
            rows, outputs, inputs, groups, limit, programs, BAND, True,
            stream_of(x.device),
        )  # fmt: skip
    return QuantizedRows(codes, scale)
