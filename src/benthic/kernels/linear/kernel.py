"""Products on CUDA in one order of adding for every number of rows (see `schedule`).

The weight is the tensor core's first operand and the rows are its second, so a tile of 16 rows wastes little, and one
row is a read of the weight. Float32 is multiplied as three products of TF32 halves, each step's sum added in float32.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.choice import uses_cuda_kernel
from benthic.kernels.linear.cuda import is_worthwhile, multiply_cuda, takes
from benthic.kernels.linear.schedule import Order, Tile, order_of, tile_of

# Neighbouring programs share weights while they are in the second-level cache.
_ROW_TILES_TOGETHER = 8
_FOLD_BLOCK = 1024


@triton.jit
def sum_segment(
    x_at, w_at, start, inputs, x_step, w_step, length,
    block_r: tl.constexpr, block_o: tl.constexpr, block_k: tl.constexpr, even: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    """One segment's sum from zero, float32 [block_o, block_r]; `x_at` [block_r] and `w_at` [block_o] are addresses."""
    total = tl.zeros((block_o, block_r), tl.float32)
    for k in range(start, start + length, block_k):
        place = k + tl.arange(0, block_k)
        if even:
            w = tl.load(w_at[:, None] + place[None, :] * w_step)
            x = tl.load(x_at[:, None] + place[None, :] * x_step)
        else:
            inside = (place < inputs)[None, :]
            w = tl.load(w_at[:, None] + place[None, :] * w_step, mask=inside, other=0.0)
            x = tl.load(x_at[:, None] + place[None, :] * x_step, mask=inside, other=0.0)
        if upcast:
            w, x = w.to(tl.float32), x.to(tl.float32)
        total = tl.dot(w, tl.trans(x), total, input_precision="tf32x3")
    return total


@triton.jit
def sum_segments(
    x_at, w_at, inputs, x_step, w_step, length, segments: tl.constexpr,
    block_r: tl.constexpr, block_o: tl.constexpr, block_k: tl.constexpr, even: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    """All segments' sums, added in order, from zero as `_fold` adds them."""
    total = tl.zeros((block_o, block_r), tl.float32)
    for segment in range(segments):
        total += sum_segment(
            x_at, w_at, segment * length, inputs, x_step, w_step, length, block_r, block_o, block_k, even, upcast
        )
    return total


@triton.jit
def _product(
    x, w, y, rows, outputs, inputs, length,
    x_row, x_group, x_step, w_output, w_group, w_step, y_row, y_group, y_segment,
    segments: tl.constexpr, is_split: tl.constexpr, together: tl.constexpr,
    block_r: tl.constexpr, block_o: tl.constexpr, block_k: tl.constexpr, even: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    row_tiles, output_tiles = tl.cdiv(rows, block_r), tl.cdiv(outputs, block_o)
    program, group = tl.program_id(0), tl.program_id(1).to(tl.int64)
    first = program // (together * output_tiles) * together
    band = min(row_tiles - first, together)
    row_tile, output_tile = (
        first + program % (together * output_tiles) % band,
        program % (together * output_tiles) // band,
    )
    row = (row_tile * block_r + tl.arange(0, block_r)).to(tl.int64)
    output = (output_tile * block_o + tl.arange(0, block_o)).to(tl.int64)
    # Places outside read the last line instead of nothing: what comes of it is not stored.
    x_at = x + group * x_group + tl.minimum(row, rows - 1) * x_row
    w_at = w + group * w_group + tl.minimum(output, outputs - 1) * w_output
    y_at = y + group * y_group + row[:, None] * y_row + output[None, :]
    if is_split:
        segment = tl.program_id(2)
        y_at += segment.to(tl.int64) * y_segment
        total = sum_segment(
            x_at, w_at, segment * length, inputs, x_step, w_step, length, block_r, block_o, block_k, even, upcast
        )
    else:
        total = sum_segments(
            x_at, w_at, inputs, x_step, w_step, length, segments, block_r, block_o, block_k, even, upcast
        )
    inside = (row < rows)[:, None] & (output < outputs)[None, :]
    tl.store(y_at, tl.trans(total).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _fold(partial, y, size, segments: tl.constexpr, block: tl.constexpr):
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    total = tl.zeros((block,), tl.float32)
    for segment in tl.static_range(segments):
        total += tl.load(partial + segment * size + place, mask=place < size, other=0.0)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=place < size)


def multiply(
    x: Tensor, weight: Tensor, out_dtype: torch.dtype, tile: Tile | None = None, order: Order | None = None
) -> Tensor:
    """y[:, g] = x[:, g] W_g^T; x [R, G, I] and weight [G, O, I] of one dtype and any strides -> [R, G, O].

    `tile` is for tests of its indifference; `order` for measuring what the order of the weight costs.
    """
    rows, groups, inputs = x.shape
    outputs = weight.shape[1]
    y = torch.empty((rows, groups, outputs), dtype=out_dtype, device=x.device)
    if not y.numel():
        return y
    order = order_of(outputs, inputs, x.dtype) if order is None else order
    tile = tile_of(rows, outputs, groups, x.dtype, order) if tile is None else tile
    target = y
    if tile.is_split:
        target = torch.empty((order.segments, rows, groups, outputs), dtype=torch.float32, device=x.device)
    programs = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)
    _product[(programs, groups, order.segments if tile.is_split else 1)](
        x, weight, target, rows, outputs, inputs, order.segment_len,
        x.stride(0), x.stride(1), x.stride(2), weight.stride(1), weight.stride(0), weight.stride(2),
        groups * outputs, outputs, y.numel(),
        order.segments, tile.is_split, _ROW_TILES_TOGETHER, **shape_of(order, tile, inputs, x),
    )  # fmt: skip
    if tile.is_split:
        _fold[(triton.cdiv(y.numel(), _FOLD_BLOCK),)](target, y, y.numel(), order.segments, _FOLD_BLOCK)
    return y


def shape_of(order: Order, tile: Tile, inputs: int, x: Tensor) -> dict[str, Any]:
    """What a kernel is compiled for. The interpreter's 16-bit arithmetic is wrong, so there values are widened."""
    return {
        "block_r": tile.rows,
        "block_o": tile.outputs,
        "block_k": order.block_k,
        "even": inputs == order.segments * order.segment_len,
        "upcast": x.is_cpu,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
    }


def product(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """`multiply` by whichever kernel is the fastest here: all add in one order."""
    if uses_cuda_kernel("auto", x) and takes(x, weight) and is_worthwhile(x.shape[0], weight, out_dtype):
        return multiply_cuda(x, weight, out_dtype)
    return multiply(x, weight, out_dtype)


@torch.library.custom_op("benthic::multiply", mutates_args=())
def multiply_trained(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    """`product` as one opaque operator with a gradient."""
    return product(x, weight, out_dtype)


@multiply_trained.register_fake
def _(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> Tensor:
    return x.new_empty((x.shape[0], x.shape[1], weight.shape[1]), dtype=out_dtype)


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, torch.dtype], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[1])


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    grad_x = grad_weight = None
    if ctx.needs_input_grad[0]:
        grad_x = rows_gradient(grad, weight)
    if ctx.needs_input_grad[1]:
        grad_weight = weight_gradient(grad, x)
    return grad_x, grad_weight, None


# The library's products: deterministic, and no row of a gradient is promised to ignore others. Opaque and of plain
# layout, so that a compiled step multiplies as an eager one does.
@torch.library.custom_op("benthic::rows_gradient", mutates_args=())
def rows_gradient(grad: Tensor, weight: Tensor) -> Tensor:
    """grad [R, G, O] and weight [G, O, I] -> [R, G, I] in the dtype of `weight`."""
    product = torch.bmm(_by_group(grad), weight.to(grad.dtype)).transpose(0, 1).contiguous()
    return product.to(weight.dtype)


@rows_gradient.register_fake
def _(grad: Tensor, weight: Tensor) -> Tensor:
    return weight.new_empty((grad.shape[0], grad.shape[1], weight.shape[2]))


@torch.library.custom_op("benthic::weight_gradient", mutates_args=())
def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """grad [R, G, O] and x [R, G, I] -> [G, O, I] in the dtype of `x`: the sum over rows of their outer products."""
    return torch.bmm(_by_group(grad).transpose(1, 2), _by_group(x).to(grad.dtype)).to(x.dtype)


@weight_gradient.register_fake
def _(grad: Tensor, x: Tensor) -> Tensor:
    return x.new_empty((grad.shape[1], grad.shape[2], x.shape[2]))


def _by_group(rows: Tensor) -> Tensor:
    return rows.transpose(0, 1).contiguous()


multiply_trained.register_autograd(_gradient, setup_context=_setup)
