"""Grouped products on CUDA: a row's bits are those of `linear` with its expert's weight, however rows are grouped.

The host never learns the groups' sizes: enough programs start for any, and each finds its own tile.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.linear.kernel import shape_of, sum_segments
from benthic.kernels.linear.schedule import Tile, grouped_tile_of, order_of


@triton.jit
def _grouped(
    x, w, ends, y, groups, outputs, inputs, length,
    x_row, x_step, w_output, w_group, w_step,
    segments: tl.constexpr, most_groups: tl.constexpr,
    block_r: tl.constexpr, block_o: tl.constexpr, block_k: tl.constexpr, even: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    # Row tiles of one group run next to each other in axis 0, so that its weight is read while it is cached.
    index = tl.arange(0, most_groups)
    end = tl.load(ends + index, mask=index < groups, other=0)
    start = tl.load(ends + index - 1, mask=(index > 0) & (index < groups), other=0)
    tiles = tl.where(index < groups, (end - start + block_r - 1) // block_r, 0)
    passed = tl.cumsum(tiles, 0)
    tile = tl.program_id(0)
    group = tl.sum((passed <= tile).to(tl.int32), 0)
    if group < groups:
        before = tl.sum(tl.where(index < group, tiles, 0), 0)
        first = tl.sum(tl.where(index == group, start, 0), 0)
        last = tl.sum(tl.where(index == group, end, 0), 0)
        row = (first + (tile - before) * block_r + tl.arange(0, block_r)).to(tl.int64)
        output = (tl.program_id(1) * block_o + tl.arange(0, block_o)).to(tl.int64)
        x_at = x + tl.minimum(row, last - 1) * x_row
        w_at = w + group.to(tl.int64) * w_group + tl.minimum(output, outputs - 1) * w_output
        total = sum_segments(
            x_at, w_at, inputs, x_step, w_step, length, segments, block_r, block_o, block_k, even, upcast
        )
        inside = (row < last)[:, None] & (output < outputs)[None, :]
        y_at = y + row[:, None] * outputs + output[None, :]
        tl.store(y_at, tl.trans(total).to(y.dtype.element_ty), mask=inside)


def multiply_grouped(x: Tensor, weight: Tensor, group_ends: Tensor, tile: Tile | None = None) -> Tensor:
    """x [N, I] and weight [E, O, I] of one dtype and any strides, group_ends int32 [E] contiguous -> [N, O]."""
    rows, inputs = x.shape
    groups, outputs, _ = weight.shape
    y = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    order = order_of(outputs, inputs, x.dtype)
    tile = grouped_tile_of(rows, groups, x.dtype) if tile is None else tile
    # Each group that has rows adds at most one tile that is not full.
    most_tiles = rows // tile.rows + min(groups, rows)
    _grouped[(most_tiles, triton.cdiv(outputs, tile.outputs))](
        x, weight, group_ends, y, groups, outputs, inputs, order.segment_len,
        x.stride(0), x.stride(1), weight.stride(1), weight.stride(0), weight.stride(2),
        order.segments, triton.next_power_of_2(groups), **shape_of(order, tile, inputs, x),
    )  # fmt: skip
    return y


@torch.library.custom_op("benthic::multiply_grouped", mutates_args=())
def multiply_grouped_trained(x: Tensor, weight: Tensor, group_ends: Tensor) -> Tensor:
    """`multiply_grouped` as one opaque operator with a gradient."""
    return multiply_grouped(x, weight, group_ends)


@multiply_grouped_trained.register_fake
def _(x: Tensor, weight: Tensor, group_ends: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[1]))


@triton.jit
def _outer(
    grad, x, ends, out, outputs, inputs, g_row, g_step, x_row, x_step,
    block_r: tl.constexpr, block_o: tl.constexpr, block_i: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(2)
    start, end = tl.load(ends + group - 1, mask=group > 0, other=0), tl.load(ends + group)
    output = (tl.program_id(0) * block_o + tl.arange(0, block_o)).to(tl.int64)
    place = (tl.program_id(1) * block_i + tl.arange(0, block_i)).to(tl.int64)
    total = tl.zeros((block_o, block_i), tl.float32)
    for first in range(start, end, block_r):
        row = (first + tl.arange(0, block_r)).to(tl.int64)
        inside = (row < end)[:, None]
        g = tl.load(
            grad + row[:, None] * g_row + output[None, :] * g_step, mask=inside & (output < outputs)[None, :], other=0.0
        )
        v = tl.load(
            x + row[:, None] * x_row + place[None, :] * x_step, mask=inside & (place < inputs)[None, :], other=0.0
        )
        if upcast:
            g, v = g.to(tl.float32), v.to(tl.float32)
        total = tl.dot(tl.trans(g), v, total, input_precision="tf32x3")
    out += group.to(tl.int64) * outputs * inputs
    inside = (output < outputs)[:, None] & (place < inputs)[None, :]
    tl.store(out + output[:, None] * inputs + place[None, :], total.to(out.dtype.element_ty), mask=inside)


def outer_triton(grad: Tensor, x: Tensor, group_ends: Tensor) -> Tensor:
    """grad [N, O] and x [N, I] -> [E, O, I]: the sum over a group's rows of their outer products, rows ascending."""
    groups, outputs, inputs = len(group_ends), grad.shape[1], x.shape[1]
    out = torch.empty((groups, outputs, inputs), dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    block, warps = (64, 4) if x.dtype is torch.float32 else (128, 8)
    _outer[(triton.cdiv(outputs, block), triton.cdiv(inputs, block), groups)](
        grad, x, group_ends, out, outputs, inputs, grad.stride(0), grad.stride(1), x.stride(0), x.stride(1),
        32 if x.dtype is torch.float32 else 64, block, block, x.is_cpu, num_warps=warps,
    )  # fmt: skip
    return out


@torch.library.custom_op("benthic::grouped_outer", mutates_args=())
def grouped_outer(grad: Tensor, x: Tensor, group_ends: Tensor) -> Tensor:
    """`outer_triton` as one opaque operator."""
    return outer_triton(grad, x, group_ends)


@grouped_outer.register_fake
def _(grad: Tensor, x: Tensor, group_ends: Tensor) -> Tensor:
    return x.new_empty((group_ends.shape[0], grad.shape[1], x.shape[1]))


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, group_ends = ctx.saved_tensors
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        grad_x = multiply_grouped_trained(grad, weight.transpose(1, 2), group_ends)
    if ctx.needs_input_grad[1]:
        grad_weight = grouped_outer(grad, x, group_ends)
    return grad_x, grad_weight, None


multiply_grouped_trained.register_autograd(_gradient, setup_context=_setup)
