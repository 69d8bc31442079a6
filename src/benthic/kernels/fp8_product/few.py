"""FP8 products of up to 64 rows on Hopper: the CUDA C++ kernels of few_rows.cu, in the bits of fp8_product.cu."""

from pathlib import Path

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.fp8_product.calling import address, function, stream_of
from benthic.kernels.fp8_product.tiles import MULTIPROCESSORS
from benthic.kernels.quantize import QuantizedRows

LIBRARY = CudaLibrary(Path(__file__).with_name("few_rows.cu"))


def multiply_few(
    x: QuantizedRows,
    data: Tensor,
    tile_scale: Tensor | None,
    base: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """[N, O] of x [N, I] and e4m3 [1, O, I], N > 0; see `cuda.multiply_fp8`."""
    _, outputs, inputs = data.shape
    rows = x.shape[0]
    y = torch.empty((rows, outputs), dtype=out_dtype, device=x.device)
    row_data, row_scale = x.data.contiguous(), x.scale.contiguous()
    with torch.cuda.device(x.device):
        function(LIBRARY, "fp8_multiply_few", "p" * 6 + "i" * 6 + "p")(
            row_data.data_ptr(), row_scale.data_ptr(), data.data_ptr(), address(tile_scale), address(base),
            y.data_ptr(), rows, outputs, inputs, out_dtype is torch.float32, MULTIPROCESSORS, True,
            stream_of(x.device),
        )  # fmt: skip
    return y


def multiply_gated_few(
    x: QuantizedRows,
    data: Tensor,
    tile_scale: Tensor | None,
    base: Tensor | None,
    row_weight: Tensor | None,
    picks: Tensor | None,
    limit: float,
) -> QuantizedRows:
    """FP8 rows [N, F] of x [N, I] and e4m3 [1, 2F, I] in eights of gate and up, N > 0; see `op.fp8_gated_product`."""
    _, outputs, inputs = data.shape
    rows = x.shape[0]
    codes = torch.empty((rows, outputs // 2), dtype=torch.float8_e4m3fn, device=x.device)
    scale = torch.empty((rows, outputs // 256), dtype=torch.float32, device=x.device)
    row_data, row_scale = x.data.contiguous(), x.scale.contiguous()
    with torch.cuda.device(x.device):
        function(LIBRARY, "fp8_multiply_gated_few", "p" * 9 + "i" * 3 + "f" + "i" + "p")(
            row_data.data_ptr(), row_scale.data_ptr(), data.data_ptr(), address(tile_scale), address(base),
            address(row_weight), address(picks), codes.data_ptr(), scale.data_ptr(),
            rows, outputs, inputs, limit, True, stream_of(x.device),
        )  # fmt: skip
    return QuantizedRows(codes, scale)
