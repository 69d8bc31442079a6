"""bf16 products of many rows on Hopper (wide.cu): the order and the bits of `kernel.multiply`.

Pairs of programs share rows, and segments follow one another in one pipeline. Products are what takes time then, so a
form is chosen for how few turns of how many rows the machine's pairs need.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.linear.schedule import Order

_LIBRARY = CudaLibrary(Path(__file__).with_name("wide.cu"))
_OUTPUTS = 128
"""Of a program; two programs take neighbouring ones."""
_FEW_ROWS = {False: 64, True: 128}
"""Up to which product.cu is faster whatever the weight; True: of one segment."""
MOST_CLUSTERED = 96
"""Programs in clusters of four or eight that ran at once; 128 did not."""
_TILE_COST = {False: 10, True: 40}
"""What a tile's results take, in rows of it; True: in float32."""


class Form(NamedTuple):
    """A schedule: rows of a tile, and whether two pairs of programs take half of a tile's segments each."""

    tile_rows: int
    is_halved: bool = False


HALVED = Form(128, True)


def forms(order: Order) -> tuple[Form, ...]:
    """All that the kernel has for this order."""
    if order.segments == 1:
        return Form(256), Form(192)
    halved = (HALVED,) if order.segments in (4, 8) else ()
    return Form(192), Form(176), Form(160), Form(128), *halved


def form_of(rows: int, groups: int, outputs: int, order: Order, out_dtype: torch.dtype, processors: int) -> Form | None:
    """The fastest form for so many rows; None where the kernel of few rows (product.cu) was measured to be faster."""
    tiles, clusters = groups * -(-outputs // _OUTPUTS) * -(-rows // 128), processors // 2
    # Of so few tiles product.cu spreads all segments over clusters, or Triton over programs.
    few_tiles = clusters // 2 if order.segments == 4 else MOST_CLUSTERED // 4
    if rows <= _FEW_ROWS[order.segments == 1] or tiles <= few_tiles:
        return None
    if tiles <= clusters and order.segments in (4, 8):
        return HALVED

    def cost(form: Form) -> int:
        """Turns that the clusters need, times a tile's rows: products are what takes time."""
        pairs = groups * -(-outputs // (2 * _OUTPUTS)) * -(-rows // form.tile_rows)
        return -(-pairs // clusters) * (form.tile_rows + _TILE_COST[out_dtype is torch.float32])

    best = min((form for form in forms(order) if not form.is_halved), key=cost)
    # A chain is cut nowhere, so product.cu has it in tiles of 128 rows, and no slower where few are full.
    is_full = groups * outputs * rows >= 0.5 * cost(best) * clusters * 2 * _OUTPUTS
    return best if order.segments > 1 or is_full else None


def multiply_wide(x: Tensor, weight: Tensor, y: Tensor, order: Order, form: Form, processors: int) -> None:
    """y[:, g] = x[:, g] W_g^T; bf16 x [R, G, I] and weight [G, O, I] as `cuda.takes` has it, y [R, G, O] contiguous."""
    rows, groups, inputs = x.shape
    _function()(
        x.data_ptr(), weight.data_ptr(), y.data_ptr(), y.dtype is torch.float32, rows, groups, weight.shape[1], inputs,
        stride_of(x, 0), stride_of(x, 1), stride_of(weight, 1), stride_of(weight, 0),
        order.segments, order.segment_len // 64, form.tile_rows, form.is_halved, processors,
        torch.cuda.current_stream(x.device).cuda_stream,
    )  # fmt: skip


def stride_of(operand: Tensor, dim: int) -> int:
    """A dimension of one may have any stride; the copy engine wants one it could use."""
    return operand.stride(dim) if operand.shape[dim] > 1 else -(-operand.shape[2] // 8) * 8


@cache
def _function() -> Callable[..., None]:
    addresses, numbers = [ctypes.c_void_p] * 3, [ctypes.c_long] * 8
    types = [*addresses, ctypes.c_int, *numbers, *[ctypes.c_int] * 5, ctypes.c_void_p]
    return _LIBRARY.function("multiply_wide_bf16", types)
