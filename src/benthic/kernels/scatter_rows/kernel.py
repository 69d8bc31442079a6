"""Rows to slots in one launch: a program copies a run of columns of one row."""

import triton
import triton.language as tl
from torch import Tensor

_MOST_COLUMNS = 1024


@triton.jit
def _scatter(target, slots, rows, stride, width: tl.constexpr, columns: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    tl.store(target + slot * width + column, tl.load(rows + row * stride + column, mask=inside), mask=inside)


def scatter_rows_triton(target: Tensor, slots: Tensor, rows: Tensor) -> None:
    """See `scatter_rows`."""
    assert target.is_contiguous(), "rows would be written into a copy"
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    width = rows.shape[1]
    columns = min(_MOST_COLUMNS, triton.next_power_of_2(width))
    grid = (len(slots), triton.cdiv(width, columns))
    _scatter[grid](target, slots, rows, rows.stride(0), width=width, columns=columns, num_warps=4)
