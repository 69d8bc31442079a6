"""A boundary on CUDA as two Triton launches: streams merged and projected piece by piece, then mixed and normed.

Launch 1 owns columns: 64 columns of all four streams make one leaf of the sums that the mixing weights come from. It
merges the closing sub-layer's output there, writes the streams, and leaves each leaf's 24 dot products and sum of
squares. Launch 2 owns rows: it adds the leaves, mixes, norms and rounds; beside it, other programs of the same launch
run Sinkhorn, one row a lane.

One order of adding for any number of rows: leaves in order within their group, each from zero, then the groups (at
most 16) in the one tree of a row's program. With few rows every leaf has a program of its own; with many, one program
runs the leaves of a group, adding them as launch 2 would.

The projection's weights are float32 and the streams bfloat16: weights are cut into three bfloat16 parts, whose products
with the streams are exact, so the sums have float32's precision on the tensor cores.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.quantize.kernel import divided, fp8_scale, to_e4m3

LEAF = 64
"""Columns of each stream that one partial sum covers."""
GROUPS = 16
FEW_ROWS = 256
"""Up to here every leaf has a program of its own, for the sake of latency."""
FEW, MANY = (16, 4), (64, 8)
"""Rows and warps of a program of launch 1, up to FEW_ROWS and beyond."""
SINKHORN_ROWS = 32
GROUP = 128
WIDTH = 32
"""Numbers that a row leaves of each leaf: dot products, the sum of squares behind them."""


@triton.jit
def _cut(x):
    """float32 as three bfloat16 whose sum it is."""
    high = x.to(tl.bfloat16)
    rest = x - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    return high, middle, (rest - middle.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _project_stream(acc, weights, x, wide_dots: tl.constexpr):
    """acc [rows, outputs] + x [rows, columns] . weights [outputs, columns]^T."""
    if wide_dots:
        return tl.dot(x.to(tl.float32), tl.trans(weights), acc, input_precision="ieee")
    # Opaque to the compiler, which else would merge the streams once more in the layout of the product.
    x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=tl.bfloat16, is_pure=False, pack=2)
    high, middle, low = _cut(tl.trans(weights))
    acc = tl.dot(x, high, acc)
    acc = tl.dot(x, middle, acc)
    return tl.dot(x, low, acc)


@triton.jit
def _merge(gate, y, c0, c1, c2, c3, x0, x1, x2, x3):
    """gate y + sum c_i x_i, its roundings spelled out: else the compiler chooses which product is fused."""
    result = gate[:, None] * y
    result = tl.fma(tl.broadcast_to(c0[:, None], y.shape), x0, result)
    result = tl.fma(tl.broadcast_to(c1[:, None], y.shape), x1, result)
    result = tl.fma(tl.broadcast_to(c2[:, None], y.shape), x2, result)
    return tl.fma(tl.broadcast_to(c3[:, None], y.shape), x3, result)


@triton.jit(do_not_specialize=["rows"])
def _project(
    output, addend, streams, post, comb, fn, merged, partial, rows, row_stride, stream_stride,
    size: tl.constexpr, outputs: tl.constexpr, leaves: tl.constexpr, closes: tl.constexpr, adds: tl.constexpr,
    wide_dots: tl.constexpr, block_o: tl.constexpr, block_m: tl.constexpr, leaf_size: tl.constexpr,
    width: tl.constexpr
):  # fmt: skip
    part = tl.program_id(0)
    row = tl.program_id(1) * block_m + tl.arange(0, block_m)
    is_row = row < rows
    row = row.to(tl.int64)
    out = tl.arange(0, block_o)
    dtype: tl.constexpr = streams.dtype.element_ty
    total = tl.zeros((block_m, block_o), tl.float32)
    squares = tl.zeros((block_m,), tl.float32)
    for leaf in range(leaves):
        column = (part * leaves + leaf) * leaf_size + tl.arange(0, leaf_size)
        inside = is_row[:, None] & (column < size)[None, :]
        place = streams + row[:, None] * row_stride + column[None, :]
        x0 = tl.load(place, mask=inside, other=0.0)
        x1 = tl.load(place + stream_stride, mask=inside, other=0.0)
        x2 = tl.load(place + 2 * stream_stride, mask=inside, other=0.0)
        x3 = tl.load(place + 3 * stream_stride, mask=inside, other=0.0)
        if closes:
            y = tl.load(output + row[:, None] * size + column[None, :], mask=inside, other=0.0).to(tl.float32)
            if adds:
                y += tl.load(addend + row[:, None] * size + column[None, :], mask=inside, other=0.0).to(tl.float32)
            y = y.to(dtype).to(tl.float32)
            w0, w1, w2, w3 = x0.to(tl.float32), x1.to(tl.float32), x2.to(tl.float32), x3.to(tl.float32)
        weight = fn + out[:, None] * (4 * size) + column[None, :]
        is_weight = (out < outputs)[:, None] & (column < size)[None, :]
        acc = tl.zeros((block_m, block_o), tl.float32)
        square = tl.zeros((block_m, leaf_size), tl.float32)
        for j in tl.static_range(4):
            if closes:
                gate = tl.load(post + row * 4 + j, mask=is_row, other=0.0)
                c0 = tl.load(comb + row * 16 + j, mask=is_row, other=0.0)
                c1 = tl.load(comb + row * 16 + 4 + j, mask=is_row, other=0.0)
                c2 = tl.load(comb + row * 16 + 8 + j, mask=is_row, other=0.0)
                c3 = tl.load(comb + row * 16 + 12 + j, mask=is_row, other=0.0)
                x = _merge(gate, y, c0, c1, c2, c3, w0, w1, w2, w3).to(dtype)
                tl.store(merged + (row[:, None] * 4 + j) * size + column[None, :], x, mask=inside)
            elif j == 0:
                x = x0
            elif j == 1:
                x = x1
            elif j == 2:
                x = x2
            else:
                x = x3
            weights = tl.load(weight + j * size, mask=is_weight, other=0.0)
            acc = _project_stream(acc, weights, x, wide_dots)
            square += x.to(tl.float32) * x.to(tl.float32)
        total += acc
        squares += tl.sum(square, 1)
    target = partial + (part.to(tl.int64) * rows + row) * width
    tl.store(target[:, None] + out[None, :], total, mask=is_row[:, None] & (out < outputs)[None, :])
    tl.store(target + outputs, squares, mask=is_row)


@triton.jit
def _sums_of_row(partial, row, rows, num_leaves: tl.constexpr, leaves: tl.constexpr, width: tl.constexpr):
    """[width] sums of one row: leaves in order within each group, then the groups."""
    group, column = tl.arange(0, 16), tl.arange(0, width)
    total = tl.zeros((16, width), tl.float32)
    for leaf in tl.static_range(leaves):
        number = group * leaves + leaf
        place = partial + (number.to(tl.int64) * rows + row)[:, None] * width + column[None, :]
        total += tl.load(place, mask=(number < num_leaves)[:, None], other=0.0)
    return tl.sum(total, 0)


@triton.jit
def _gate(sums, i: tl.constexpr, factor, sharpness, base, eps, width: tl.constexpr):
    """pre_i of the row: sigmoid + eps."""
    logit = tl.sum(tl.where(tl.arange(0, width) == i, sums, 0.0), 0)
    return tl.sigmoid(logit * factor * sharpness + tl.load(base + i)) + eps


@triton.jit
def _mix_row(
    row, rows, streams, partial, scale, base, gain, normed, codes, scales, eps, norm_eps, row_stride, stream_stride,
    size: tl.constexpr, outputs: tl.constexpr, num_leaves: tl.constexpr, leaves: tl.constexpr,
    quantizes: tl.constexpr, block_g: tl.constexpr, group_size: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """The mix, its norm and its rounding of one row, as groups [G, 128] of columns."""
    dtype: tl.constexpr = streams.dtype.element_ty
    row = row.to(tl.int64)
    group, lane = tl.arange(0, block_g), tl.arange(0, group_size)
    column = group[:, None] * group_size + lane[None, :]
    inside = column < size
    place = streams + row * row_stride + column
    x0 = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    x1 = tl.load(place + stream_stride, mask=inside, other=0.0).to(tl.float32)
    x2 = tl.load(place + 2 * stream_stride, mask=inside, other=0.0).to(tl.float32)
    x3 = tl.load(place + 3 * stream_stride, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    sums = _sums_of_row(partial, row, rows, num_leaves, leaves, width)
    squares = tl.sum(tl.where(tl.arange(0, width) == outputs, sums, 0.0), 0)
    factor = tl.rsqrt(squares / (4 * size) + norm_eps)
    sharpness = tl.load(scale)
    mixed = _gate(sums, 0, factor, sharpness, base, eps, width) * x0
    mixed += _gate(sums, 1, factor, sharpness, base, eps, width) * x1
    mixed += _gate(sums, 2, factor, sharpness, base, eps, width) * x2
    mixed += _gate(sums, 3, factor, sharpness, base, eps, width) * x3
    mixed = mixed.to(dtype).to(tl.float32)
    mean = tl.sum(tl.sum(mixed * mixed, 1), 0) / size
    result = (mixed * tl.rsqrt(mean + norm_eps) * weight).to(dtype)
    tl.store(normed + row * size + column, result, mask=inside)
    if quantizes:
        value = result.to(tl.float32)
        step = fp8_scale(tl.max(value.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1), True)
        code = to_e4m3(divided(value, step[:, None], True))
        tl.store(codes + row * size + column, code, mask=inside)
        groups: tl.constexpr = size // group_size
        tl.store(scales + row * groups + group, step, mask=group < groups)


@triton.jit
def _columns_of(tile, block_m: tl.constexpr):
    """[rows, 8] -> eight vectors [rows], in order."""
    even, odd = tl.split(tl.reshape(tile, (block_m, 4, 2)))
    c04, c26 = tl.split(tl.reshape(even, (block_m, 2, 2)))
    c15, c37 = tl.split(tl.reshape(odd, (block_m, 2, 2)))
    c0, c4 = tl.split(c04)
    c2, c6 = tl.split(c26)
    c1, c5 = tl.split(c15)
    c3, c7 = tl.split(c37)
    return c0, c1, c2, c3, c4, c5, c6, c7


@triton.jit
def _sums_of_rows(
    partial, row, is_row, column, rows, num_leaves: tl.constexpr, leaves: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """[rows, columns] likewise, of many rows at once."""
    target = partial + row[:, None] * width + column[None, :]
    total = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
    for group in tl.static_range((num_leaves + leaves - 1) // leaves):
        acc = tl.zeros((row.shape[0], column.shape[0]), tl.float32)
        for leaf in tl.static_range(leaves):
            if group * leaves + leaf < num_leaves:
                acc += tl.load(target + (group * leaves + leaf) * rows * width, mask=is_row[:, None], other=0.0)
        total += acc
    return total


@triton.jit
def _comb_logits(tile, factor, sharpness, base, first: tl.constexpr, block_m: tl.constexpr):
    c0, c1, c2, c3, c4, c5, c6, c7 = _columns_of(tile, block_m)
    c0 = c0 * factor * sharpness + tl.load(base + first)
    c1 = c1 * factor * sharpness + tl.load(base + first + 1)
    c2 = c2 * factor * sharpness + tl.load(base + first + 2)
    c3 = c3 * factor * sharpness + tl.load(base + first + 3)
    c4 = c4 * factor * sharpness + tl.load(base + first + 4)
    c5 = c5 * factor * sharpness + tl.load(base + first + 5)
    c6 = c6 * factor * sharpness + tl.load(base + first + 6)
    c7 = c7 * factor * sharpness + tl.load(base + first + 7)
    return c0, c1, c2, c3, c4, c5, c6, c7


@triton.jit
def _softmax4(a, b, c, d, eps):
    top = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
    a, b, c, d = tl.exp(a - top), tl.exp(b - top), tl.exp(c - top), tl.exp(d - top)
    share = 1.0 / (a + b + c + d)
    return a * share + eps, b * share + eps, c * share + eps, d * share + eps


@triton.jit
def _normalised4(a, b, c, d, eps):
    share = 1.0 / (a + b + c + d + eps)
    return a * share, b * share, c * share, d * share


@triton.jit
def _weigh_rows(
    row, is_row, rows, partial, scale, base, post, comb, eps, norm_eps, iters,
    size: tl.constexpr, num_leaves: tl.constexpr, leaves: tl.constexpr, block_s: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """post and comb of some rows, a row a lane: 16 numbers in registers through all rounds."""
    four, eight = tl.arange(0, 4), tl.arange(0, 8)
    row = row.to(tl.int64)
    square = tl.sum(_sums_of_rows(partial, row, is_row, 24 + tl.arange(0, 1), rows, num_leaves, leaves, width), 1)
    factor = tl.rsqrt(square / (4 * size) + norm_eps)
    gates = _sums_of_rows(partial, row, is_row, 4 + four, rows, num_leaves, leaves, width)
    gates = 2.0 * tl.sigmoid(gates * factor[:, None] * tl.load(scale + 1) + tl.load(base + 4 + four)[None, :])
    tl.store(post + row[:, None] * 4 + four[None, :], gates, mask=is_row[:, None])
    upper = _sums_of_rows(partial, row, is_row, 8 + eight, rows, num_leaves, leaves, width)
    lower = _sums_of_rows(partial, row, is_row, 16 + eight, rows, num_leaves, leaves, width)
    sharpness = tl.load(scale + 2)
    a0, a1, a2, a3, b0, b1, b2, b3 = _comb_logits(upper, factor, sharpness, base, 8, block_s)
    c0, c1, c2, c3, d0, d1, d2, d3 = _comb_logits(lower, factor, sharpness, base, 16, block_s)
    a0, a1, a2, a3 = _softmax4(a0, a1, a2, a3, eps)
    b0, b1, b2, b3 = _softmax4(b0, b1, b2, b3, eps)
    c0, c1, c2, c3 = _softmax4(c0, c1, c2, c3, eps)
    d0, d1, d2, d3 = _softmax4(d0, d1, d2, d3, eps)
    a0, b0, c0, d0 = _normalised4(a0, b0, c0, d0, eps)
    a1, b1, c1, d1 = _normalised4(a1, b1, c1, d1, eps)
    a2, b2, c2, d2 = _normalised4(a2, b2, c2, d2, eps)
    a3, b3, c3, d3 = _normalised4(a3, b3, c3, d3, eps)
    for _ in range(iters - 1):
        a0, a1, a2, a3 = _normalised4(a0, a1, a2, a3, eps)
        b0, b1, b2, b3 = _normalised4(b0, b1, b2, b3, eps)
        c0, c1, c2, c3 = _normalised4(c0, c1, c2, c3, eps)
        d0, d1, d2, d3 = _normalised4(d0, d1, d2, d3, eps)
        a0, b0, c0, d0 = _normalised4(a0, b0, c0, d0, eps)
        a1, b1, c1, d1 = _normalised4(a1, b1, c1, d1, eps)
        a2, b2, c2, d2 = _normalised4(a2, b2, c2, d2, eps)
        a3, b3, c3, d3 = _normalised4(a3, b3, c3, d3, eps)
    place = comb + row * 16
    tl.store(place, a0, mask=is_row)
    tl.store(place + 1, a1, mask=is_row)
    tl.store(place + 2, a2, mask=is_row)
    tl.store(place + 3, a3, mask=is_row)
    tl.store(place + 4, b0, mask=is_row)
    tl.store(place + 5, b1, mask=is_row)
    tl.store(place + 6, b2, mask=is_row)
    tl.store(place + 7, b3, mask=is_row)
    tl.store(place + 8, c0, mask=is_row)
    tl.store(place + 9, c1, mask=is_row)
    tl.store(place + 10, c2, mask=is_row)
    tl.store(place + 11, c3, mask=is_row)
    tl.store(place + 12, d0, mask=is_row)
    tl.store(place + 13, d1, mask=is_row)
    tl.store(place + 14, d2, mask=is_row)
    tl.store(place + 15, d3, mask=is_row)


@triton.jit(do_not_specialize=["rows", "iters"])
def _finish(
    streams, partial, scale, base, gain, normed, codes, scales, post, comb, rows, iters, eps, norm_eps,
    row_stride, stream_stride,
    size: tl.constexpr, outputs: tl.constexpr, num_leaves: tl.constexpr, leaves: tl.constexpr, weighs: tl.constexpr,
    quantizes: tl.constexpr, block_g: tl.constexpr, block_s: tl.constexpr, group_size: tl.constexpr,
    width: tl.constexpr
):  # fmt: skip
    """The first programs weigh `block_s` rows each, if any do; every other one mixes a row."""
    program = tl.program_id(0)
    first = 0
    if weighs:
        first = (rows + block_s - 1) // block_s
        if program < first:
            row = program * block_s + tl.arange(0, block_s)
            _weigh_rows(
                row, row < rows, rows, partial, scale, base, post, comb, eps, norm_eps, iters,
                size, num_leaves, leaves, block_s, width
            )  # fmt: skip
    if program >= first:
        _mix_row(
            program - first, rows, streams, partial, scale, base, gain, normed, codes, scales, eps, norm_eps,
            row_stride, stream_stride, size, outputs, num_leaves, leaves, quantizes, block_g, group_size, width
        )  # fmt: skip


def hyper_boundary_triton(
    output: Tensor | None,
    addend: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    gain: Tensor,
    eps: float,
    iters: int,
    norm_eps: float,
    quantizes: bool,
    interpreted: bool = False,
) -> tuple[Tensor, ...]:
    """See `hyper_boundary`: streams, input, post, comb and, if it `quantizes`, codes and scales of the input.

    `interpreted`: dots in float32 alone, because Triton's interpreter cannot do them in bfloat16.
    """
    rows, n, size = streams.shape
    merged, partial, leaves = _projected(output, addend, streams, post, comb, fn, interpreted)
    new_post, new_comb = fn.new_empty(rows, n), fn.new_empty(rows, n, n)
    weights, mixing = (scale, base, gain), (new_post, new_comb)
    made = _finished(merged, partial, leaves, weights, mixing, eps, norm_eps, iters, quantizes)
    return (merged, made[0], new_post, new_comb, *made[1:])


def hyper_exit_triton(
    output: Tensor | None,
    addend: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    scale: Tensor,
    base: Tensor,
    gain: Tensor,
    eps: float,
    norm_eps: float,
    interpreted: bool = False,
) -> tuple[Tensor, Tensor]:
    """See `hyper_exit`."""
    merged, partial, leaves = _projected(output, addend, streams, post, comb, fn, interpreted)
    return merged, _finished(merged, partial, leaves, (scale, base, gain), None, eps, norm_eps, 0, False)[0]


def _leaves(size: int) -> tuple[int, int]:
    """(leaves in all, leaves of a group) for streams of that width."""
    count = triton.cdiv(size, LEAF)
    return count, triton.cdiv(count, GROUPS)


def _projected(
    output: Tensor | None,
    addend: Tensor | None,
    streams: Tensor,
    post: Tensor | None,
    comb: Tensor | None,
    fn: Tensor,
    interpreted: bool,
) -> tuple[Tensor, Tensor, int]:
    """Launch 1: the merged streams, partial sums [parts, R, width], and how many leaves of a group are still apart."""
    rows, n, size = streams.shape
    num_leaves, a_group = _leaves(size)
    is_few = rows <= FEW_ROWS
    at_once = 1 if is_few else a_group
    block_m, warps = FEW if is_few else MANY
    parts = triton.cdiv(num_leaves, at_once)
    width = 8 if fn.shape[0] == n else WIDTH
    if streams.stride(2) != 1:
        streams = streams.contiguous()
    closes = output is not None
    merged = streams.new_empty(rows, n, size) if closes else streams
    partial = torch.empty(parts, rows, width, dtype=torch.float32, device=streams.device)
    if rows:
        dense = [None if x is None else x.contiguous() for x in (output, addend, post, comb)]
        _project[(parts, triton.cdiv(rows, block_m))](
            dense[0], dense[1], streams, dense[2], dense[3], fn.contiguous(), merged, partial, rows,
            streams.stride(0), streams.stride(1),
            size=size, outputs=fn.shape[0], leaves=at_once, closes=closes, adds=addend is not None,
            wide_dots=interpreted or streams.dtype is torch.float32,
            block_o=max(16, triton.next_power_of_2(fn.shape[0])), block_m=block_m, leaf_size=LEAF, width=width,
            num_warps=warps, num_stages=1,
        )  # fmt: skip
    return merged, partial, (a_group if at_once == 1 else 1)


def _finished(
    streams: Tensor,
    partial: Tensor,
    leaves: int,
    weights: tuple[Tensor, Tensor, Tensor],
    mixing: tuple[Tensor, Tensor] | None,
    eps: float,
    norm_eps: float,
    iters: int,
    quantizes: bool,
) -> tuple[Tensor, ...]:
    """Launch 2: the normed mix and, if asked for, its codes and scales; fills `mixing` (post, comb)."""
    rows, n, size = streams.shape
    scale, base, gain = weights
    normed = streams.new_empty(rows, size)
    rounded: tuple[Tensor, ...] = ()
    if quantizes:
        codes = torch.empty(rows, size, dtype=torch.float8_e4m3fn, device=streams.device)
        rounded = (codes, torch.empty(rows, size // GROUP, dtype=torch.float32, device=streams.device))
    block_s = 8 if rows <= FEW_ROWS else SINKHORN_ROWS
    weighing = triton.cdiv(rows, block_s) if mixing is not None else 0
    if rows:
        block_g = triton.next_power_of_2(triton.cdiv(size, GROUP))
        _finish[(weighing + rows,)](
            streams, partial, scale, base, gain, normed, *(rounded or (None, None)), *(mixing or (None, None)),
            rows, iters, eps, norm_eps, streams.stride(0), streams.stride(1),
            size=size, outputs=base.shape[0], num_leaves=len(partial), leaves=leaves, weighs=mixing is not None,
            quantizes=quantizes, block_g=block_g, block_s=block_s, group_size=GROUP, width=partial.shape[2],
            num_warps=8 if size > 2048 else 4,
        )  # fmt: skip
    return (normed, *rounded)
