"""FP8 products by Triton, dense and grouped: the order of fp8_product.cu, for where that does not run.

One dot of 128 inputs is one chain of tensor-core steps, so a step's sum does not depend on the tile. The weight is the
first operand: of 64 rows and more, or Triton leaves Hopper's products for older ones that add otherwise.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.quantize import QuantizedRows


@triton.jit
def _multiply(
    x, row_scale, w, tile_scale, base, ends, y, rows, outputs, steps, groups,
    has_tiles: tl.constexpr, has_base: tl.constexpr, has_ends: tl.constexpr, most_groups: tl.constexpr,
    block_r: tl.constexpr, block_o: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    # Row tiles of one group run next to each other in axis 0, so that its weight is read while it is cached.
    tile = tl.program_id(0)
    group, before, first, last = tile * 0, tile * 0, tile * 0, tile * 0 + rows
    if has_ends:
        index = tl.arange(0, most_groups)
        end = tl.load(ends + index, mask=index < groups, other=0)
        start = tl.load(ends + index - 1, mask=(index > 0) & (index < groups), other=0)
        tiles = tl.where(index < groups, (end - start + block_r - 1) // block_r, 0)
        group = tl.sum((tl.cumsum(tiles, 0) <= tile).to(tl.int32), 0)
        before = tl.sum(tl.where(index < group, tiles, 0), 0)
        first = tl.sum(tl.where(index == group, start, 0), 0)
        last = tl.sum(tl.where(index == group, end, 0), 0)
    if group < groups:
        inputs = steps * 128
        row = (first + (tile - before) * block_r + tl.arange(0, block_r)).to(tl.int64)
        output = (tl.program_id(1) * block_o + tl.arange(0, block_o)).to(tl.int64)
        place = tl.arange(0, 128)
        # Places outside read the last line instead of nothing: what comes of it is not stored.
        row_at, output_at = tl.minimum(row, last - 1), tl.minimum(output, outputs - 1)
        x_at = x + row_at[:, None] * inputs + place[None, :]
        w_at = w + (group.to(tl.int64) * outputs + output_at)[:, None] * inputs + place[None, :]
        blocks = (outputs + 127) // 128
        # A tile's outputs lie within one 128.
        block = tl.program_id(1) * block_o // 128
        total = tl.zeros((block_o, block_r), tl.float32)
        for k in range(steps):
            a, b = tl.load(x_at + k * 128), tl.load(w_at + k * 128)
            if upcast:
                a, b = a.to(tl.float32), b.to(tl.float32)
            scale = tl.load(row_scale + row_at * steps + k)
            if has_tiles:
                scale = scale * tl.load(tile_scale + (group * blocks + block) * steps + k)
            total += tl.dot(b, tl.trans(a)) * scale[None, :]
        if has_base:
            total = total * tl.load(base + group.to(tl.int64) * outputs + output_at)[:, None]
        inside = (row < last)[:, None] & (output < outputs)[None, :]
        tl.store(y + row[:, None] * outputs + output[None, :], tl.trans(total).to(y.dtype.element_ty), mask=inside)


def multiply_fp8_triton(
    x: QuantizedRows,
    data: Tensor,
    tile_scale: Tensor | None,
    base: Tensor | None,
    group_ends: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """[N, O] of x [N, I] and e4m3 [E, O, I]; arguments as for `cuda.multiply_fp8`."""
    groups, outputs, inputs = data.shape
    rows = x.shape[0]
    y = torch.empty((rows, outputs), dtype=out_dtype, device=x.device)
    if not y.numel():
        return y
    few = rows <= 32 * groups
    block_r, block_o = (16, 64) if few else (128, 128)
    row_tiles = triton.cdiv(rows, block_r) if group_ends is None else rows // block_r + min(groups, rows)
    _multiply[(row_tiles, triton.cdiv(outputs, block_o))](
        x.data.contiguous(), x.scale.contiguous(), data, tile_scale, base, group_ends, y,
        rows, outputs, inputs // 128, groups,
        tile_scale is not None, base is not None, group_ends is not None, triton.next_power_of_2(groups),
        block_r, block_o, x.device.type == "cpu",
        num_warps=4 if few else 8, num_stages=4 if few else 3,
    )  # fmt: skip
    return y
