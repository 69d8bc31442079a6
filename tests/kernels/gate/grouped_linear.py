"""Production shapes of grouped products by Triton: experts of few rows and of many, and their weights' gradient."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benthic.kernels.grouped_linear.kernel import multiply_grouped, outer_triton

EXPERTS, OUTPUTS, INPUTS, ON = 256, 4096, 4096, torch.device("meta")


def production() -> Iterator[tuple[str, Callable[[], object]]]:
    """(case, launch)."""
    for dtype in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        for rows in (768, 49152):
            yield f"experts of {rows} rows in {name}", lambda dtype=dtype, rows=rows: _multiply(rows, dtype)
        yield f"weights' gradient in {name}", lambda dtype=dtype: _outer(dtype)


def _multiply(rows: int, dtype: torch.dtype) -> Tensor:
    weight = torch.empty(EXPERTS, OUTPUTS, INPUTS, dtype=dtype, device=ON)
    ends = torch.empty(EXPERTS, dtype=torch.int32, device=ON)
    return multiply_grouped(torch.empty(rows, INPUTS, dtype=dtype, device=ON), weight, ends)


def _outer(dtype: torch.dtype) -> Tensor:
    grad, x = (torch.empty(49152, size, dtype=dtype, device=ON) for size in (OUTPUTS, INPUTS))
    return outer_triton(grad, x, torch.empty(EXPERTS, dtype=torch.int32, device=ON))
