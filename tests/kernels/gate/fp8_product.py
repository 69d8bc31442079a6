"""Production shapes of FP8 by Triton: rounding of rows, and products where the CUDA C++ source does not run."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benthic.kernels.fp8_product.kernel import multiply_fp8_triton
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.quantize.kernel import quantize_rows_cuda, round_rows_cuda


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for dtype in (torch.bfloat16, torch.float32):
        yield f"quantize {dtype}".replace("torch.", ""), lambda dtype=dtype: _quantize(dtype)
        yield f"round trip {dtype}".replace("torch.", ""), lambda dtype=dtype: _round(dtype)
    for rows in (1, 4096):
        yield f"dense M={rows}", lambda rows=rows: _multiply(rows)
        yield f"experts M={rows}", lambda rows=rows: _multiply(256 * rows, groups=256)


def _quantize(dtype: torch.dtype) -> QuantizedRows:
    return quantize_rows_cuda(torch.empty(4096, 4096, dtype=dtype, device="meta"), "ue8m0")


def _round(dtype: torch.dtype) -> Tensor:
    return round_rows_cuda(torch.empty(4096, 448, dtype=dtype, device="meta"), "ue8m0")


def _multiply(rows: int, groups: int = 1) -> Tensor:
    on = torch.device("meta")
    x = QuantizedRows(torch.empty(rows, 4096, dtype=torch.float8_e4m3fn, device=on), torch.empty(rows, 32, device=on))
    data = torch.empty(groups, 4096, 4096, dtype=torch.float8_e4m3fn, device=on)
    ends = None if groups == 1 else torch.empty(groups, dtype=torch.int32, device=on)
    return multiply_fp8_triton(x, data, torch.empty(groups, 32, 32, device=on), None, ends, torch.bfloat16)
