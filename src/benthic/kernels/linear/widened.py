"""Products of bfloat16 rows with FP8 weights on CUDA, one launch, in one order of adding for any number of rows.

    for each 128 of I, ascending, from acc = 0:   acc += (x . codes, in float32) * tile scale

Codes are widened to bfloat16 in registers, which holds them exactly; a weight costs one byte to read. With many rows
the same codes would be widened for every tile of rows, so they are widened once, before: the sums are the same. A
program makes 128 outputs of some rows: a whole group of the FP8 rounding that a following product may ask for.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.linear.weights import Fp8Weight
from benthic.kernels.quantize.kernel import divided, fp8_scale, to_e4m3
from benthic.kernels.quantize.rows import GROUP, QuantizedRows

MANY_ROWS = 512
"""Rows from which codes are widened before."""

_TILES = ((16, 16, 8), (32, 32, 7), (64, 64, 6), (MANY_ROWS - 1, 128, 4), (1 << 62, 128, 3))
"""Up to so many rows: rows of a tile, and stages of its loads. Any tile gives the same bits."""


@triton.jit
def _widened(
    x, w, w_scale, y, y_scale, rows, outputs, inputs, x_row, x_group,
    quantizes: tl.constexpr, block_r: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    tile, group = tl.program_id(1), tl.program_id(2).to(tl.int64)
    row = (tl.program_id(0) * block_r + tl.arange(0, block_r)).to(tl.int64)
    output = tile * 128 + tl.arange(0, 128)
    is_row, k = row < rows, tl.arange(0, 128)
    runs = inputs // 128
    x_at = x + row[:, None] * x_row + group * x_group + k[None, :]
    w_at = w + (group * outputs + output[:, None]) * inputs + k[None, :]
    scale_at = w_scale + (group * (outputs // 128) + tile) * runs
    acc = tl.zeros((128, block_r), tl.float32)
    for run in range(runs):
        codes = tl.load(w_at + run * 128).to(tl.bfloat16)
        values = tl.load(x_at + run * 128, mask=is_row[:, None], other=0.0)
        if upcast:
            part = tl.dot(codes.to(tl.float32), tl.trans(values.to(tl.float32)), input_precision="ieee")
        else:
            part = tl.dot(codes, tl.trans(values))
        acc += part * tl.load(scale_at + run)
    result = tl.trans(acc.to(tl.bfloat16))
    column = group * outputs + output
    width = tl.num_programs(2).to(tl.int64) * outputs
    place = row[:, None] * width + column[None, :]
    if quantizes:
        values = result.to(tl.float32)
        amax_bits = tl.max(values.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1)
        factor = fp8_scale(amax_bits, True)
        tl.store(y + place, to_e4m3(divided(values, factor[:, None], True)), mask=is_row[:, None])
        tl.store(y_scale + row * (width // 128) + (group * outputs // 128 + tile), factor, mask=is_row)
    else:
        tl.store(y + place, result, mask=is_row[:, None])


def multiply_widened(x: Tensor, weight: Fp8Weight, *, quantizes: bool) -> Tensor | QuantizedRows:
    """x bfloat16 [R, G, I] with unit column stride, weight [G, O, I], O and I multiples of 128.

    Returns:
        bfloat16 [R, G, O]; or its rows [R, G O] in FP8 with scales that are powers of two.
    """
    rows, groups, inputs = x.shape
    outputs = weight.shape[1]
    on = x.device
    y = torch.empty(rows, groups * outputs, dtype=torch.float8_e4m3fn if quantizes else torch.bfloat16, device=on)
    scale = torch.empty(rows, groups * outputs // GROUP if quantizes else 0, device=on)
    if rows:
        codes = weight.data if rows < MANY_ROWS else weight.data.to(torch.bfloat16)
        # A program in each of 64 multiprocessors, so each keeps much in flight.
        block_r, stages = next(tile for most, *tile in _TILES if rows <= most)
        _widened[(triton.cdiv(rows, block_r), outputs // GROUP, groups)](
            x, codes, weight.scale, y, scale, rows, outputs, inputs, x.stride(0), x.stride(1),
            quantizes, block_r, x.is_cpu, num_warps=8, num_stages=stages,
        )  # fmt: skip
    return QuantizedRows(y, scale) if quantizes else y.view(rows, groups, outputs)
