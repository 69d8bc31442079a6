"""Routed experts in Triton: any shape and form, three launches; what runs where the streaming kernel does not.

Weights are widened to bfloat16, which holds FP4 codes times any power of two and all of e4m3, as do the rows: products
are exact and their sums float32, a run of 128 inputs at a time, acc += d * scales. Blocks of 16 rows of one expert are
found from the offsets alone: expert e owns the blocks from (offsets[e] + 15 e) / 16 on.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.moe_experts.layout import PIECE_BYTES, TILE
from benthic.kernels.moe_experts.weights import GROUP, RUN, TABLE_SHIFT, Fp4Experts, Fp8Experts
from benthic.kernels.moe_route import ExpertRows
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.quantize.kernel import divided, fp8_scale, to_e4m3

_ROWS, _OUTPUTS, _SUM_BLOCK = 16, 128, 1024
_FORMS = {"fp8": 0, "plain": 1, "row": 2, "block": 3}
_CODE_BYTES = TILE * TILE // 2


@triton.jit
def _magnitude(code):
    """e2m1 codes 0..7: 0, 0.5, 1, 1.5, 2, 3, 4, 6."""
    power = ((127 - 2 + (code >> 1)) << 23).to(tl.float32, bitcast=True)
    return tl.where(code < 2, code.to(tl.float32) * 0.5, (2 + (code & 1)).to(tl.float32) * power)


@triton.jit
def _power(exponent):
    """2^(exponent - 127) as float32, exponent 0 included."""
    bits = tl.where(exponent == 0, 1 << 22, exponent << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _piece_of(output, outputs, is_w13: tl.constexpr):
    """(tile, slice, g, line) of an output in the streamed layout."""
    if is_w13:
        column = output % (outputs // 2)
        place = (column // 128, column // 8 % 16, column % 8, output // (outputs // 2))
    else:
        place = (output // 256, output // 16 % 16, output // 2 % 8, output % 2)
    return place


@triton.jit
def _official_weights(codes, scale, row, place, inputs, inside):
    byte = tl.load(codes + row * (inputs // 2) + place // 2, mask=inside, other=0).to(tl.int32)
    nibble = (byte >> (4 * (place & 1))) & 15
    exponent = tl.load(scale + row * (inputs // 32) + place // 32, mask=inside, other=0).to(tl.int32)
    magnitude = _magnitude(nibble & 7) * _power(exponent)
    return tl.where(nibble >= 8, -magnitude, magnitude)


@triton.jit
def _streamed_weights(
    codes, expert, output, run, outputs, inputs, inside, has_runs: tl.constexpr, is_w13: tl.constexpr,
    code_bytes: tl.constexpr, piece_bytes: tl.constexpr,
):  # fmt: skip
    """Without the rows' bases. `layout` says what lies where."""
    k = tl.arange(0, 128)[None, :]
    tile, slice, g, line = _piece_of(output, outputs, is_w13)
    piece = ((expert * (outputs // 256) + tile) * (inputs // 256) + run // 2)[:, None] * piece_bytes
    half, t, i = (k >> 4) & 1, (k >> 2) & 3, k & 3
    word = slice[:, None] * 2048 + run % 2 * 1024 + (k >> 6) * 512 + (g[:, None] * 4 + t) * 16
    word += (((k >> 5) & 1) * 2 + line[:, None]) * 4
    nibble = half * 4 + i
    byte = tl.load(codes + piece + word + nibble // 2, mask=inside, other=0).to(tl.int32)
    signs = tl.load(codes + piece + word + i, mask=inside, other=0).to(tl.int32)
    short = piece + code_bytes + slice[:, None] * 128 + g[:, None] * 16 + line[:, None] * 8 + run % 2 * 4
    exponent = tl.load(codes + short + (k >> 5), mask=inside, other=0).to(tl.int32)
    if has_runs:
        low = tl.load(codes + short + 0 * k, mask=inside, other=0).to(tl.int32) >> 4
        high = tl.load(codes + short + 1 + 0 * k, mask=inside, other=0).to(tl.int32) >> 4
        exponent = (exponent & 15) + low + high * 16
    magnitude = _magnitude((byte >> (4 * (nibble & 1))) & 7) * _power(127 + exponent)
    return tl.where(((signs >> (7 - 4 * half)) & 1) == 1, -magnitude, magnitude)


@triton.jit
def _sums(
    x, x_scale, codes, scale, expert, output, source, live, outputs, inputs, runs,
    form: tl.constexpr, is_w13: tl.constexpr, code_bytes: tl.constexpr, piece_bytes: tl.constexpr,
    table_shift: tl.constexpr, rows: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    """float32 [outputs of `output`, rows]."""
    total = tl.zeros((output.shape[0], rows), tl.float32)
    for run in range(runs):
        place = run * 128 + tl.arange(0, 128)
        inside = (output < outputs)[:, None] & (place < inputs)[None, :]
        row = (expert * outputs + output)[:, None]
        if form == 0:
            w = tl.load(codes + row * inputs + place[None, :], mask=inside, other=0.0).to(tl.float32)
        elif form == 1:
            w = _official_weights(codes, scale, row, place[None, :], inputs, inside)
        else:
            w = _streamed_weights(
                codes, expert, output, run, outputs, inputs, inside, form == 3, is_w13, code_bytes, piece_bytes
            )
        mask = live[:, None] & (place < inputs)[None, :]
        values = tl.load(x + source[:, None] * inputs + place[None, :], mask=mask, other=0.0).to(tl.float32)
        if upcast:
            part = tl.dot(w, tl.trans(values), input_precision="ieee")
        else:
            part = tl.dot(w.to(tl.bfloat16), tl.trans(values.to(tl.bfloat16)))
        factor = tl.load(x_scale + source * runs + run, mask=live, other=0.0)[None, :]
        if form == 0:
            tiles = expert * ((outputs + 127) // 128) + output // 128
            factor = factor * tl.load(scale + tiles * runs + run, mask=output < outputs, other=0.0)[:, None]
        total += part * factor
    if form >= 2:
        base = tl.load(scale + expert * outputs + output, mask=output < outputs, other=0.0)
        total *= base[:, None] * 2.0**-table_shift
    return total


@triton.jit
def _own_rows(offsets, order, experts, top_k, rows: tl.constexpr, most: tl.constexpr):
    """(expert, picks, which are live) of this program's block of rows."""
    block = tl.program_id(0)
    index = tl.arange(0, most)
    offset = tl.load(offsets + index, mask=index < experts, other=0)
    first = (offset + (rows - 1) * index) // rows
    expert = tl.sum(((first <= block) & (index < experts)).to(tl.int32), 0) - 1
    start, end = tl.load(offsets + expert), tl.load(offsets + expert + 1)
    local = (block - (start + (rows - 1) * expert) // rows) * rows + tl.arange(0, rows)
    live = start + local < end
    pick = tl.load(order + start + local, mask=live, other=0)
    return expert.to(tl.int64), pick.to(tl.int64), live


@triton.jit
def _multiply_w13(
    x, x_scale, codes, scale, offsets, order, weights, inner, inner_scale, experts, top_k, width, inputs, runs, limit,
    form: tl.constexpr, code_bytes: tl.constexpr, piece_bytes: tl.constexpr, table_shift: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, most: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    expert, pick, live = _own_rows(offsets, order, experts, top_k, rows, most)
    if tl.sum(live.to(tl.int32), 0) == 0:
        return
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside, source = column < width, pick // top_k
    # Columns behind the last repeat it, so that gate and up never reach into each other.
    own = tl.minimum(column, width - 1)
    gate = _sums(
        x, x_scale, codes, scale, expert, own, source, live, 2 * width, inputs, runs,
        form, True, code_bytes, piece_bytes, table_shift, rows, upcast,
    )  # fmt: skip
    up = _sums(
        x, x_scale, codes, scale, expert, width + own, source, live, 2 * width, inputs, runs,
        form, True, code_bytes, piece_bytes, table_shift, rows, upcast,
    )  # fmt: skip
    # NaN passes the comparisons.
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    y = gate / (1.0 + tl.exp(-gate)) * up * tl.load(weights + pick, mask=live, other=0.0)[None, :]
    y = tl.where(inside[:, None], y, 0.0)
    step = fp8_scale(tl.max(y.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0), True)
    at = pick[None, :] * width + column[:, None]
    tl.store(inner + at, to_e4m3(divided(y, step[None, :], True)), mask=inside[:, None] & live[None, :])
    groups = (width + columns - 1) // columns
    tl.store(inner_scale + pick * groups + tl.program_id(1), step, mask=live)


@triton.jit
def _multiply_w2(
    inner, inner_scale, codes, scale, offsets, order, result, experts, top_k, size, width, runs,
    form: tl.constexpr, code_bytes: tl.constexpr, piece_bytes: tl.constexpr, table_shift: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, most: tl.constexpr, upcast: tl.constexpr,
):  # fmt: skip
    expert, pick, live = _own_rows(offsets, order, experts, top_k, rows, most)
    if tl.sum(live.to(tl.int32), 0) == 0:
        return
    output = tl.program_id(1) * columns + tl.arange(0, columns)
    total = _sums(
        inner, inner_scale, codes, scale, expert, output, pick, live, size, width, runs,
        form, False, code_bytes, piece_bytes, table_shift, rows, upcast,
    )  # fmt: skip
    at = pick[None, :] * size + output[:, None]
    tl.store(result + at, total.to(result.dtype.element_ty), mask=(output < size)[:, None] & live[None, :])


@triton.jit
def _sum_picks(
    outputs, slots, shared, result, top_k, size, has_shared: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    inside = column < size
    live = tl.load(slots + row * top_k) >= 0
    total = tl.zeros((block,), tl.float32)
    for k in range(top_k):
        total += tl.load(outputs + (row * top_k + k) * size + column, mask=inside & live, other=0.0).to(tl.float32)
    if has_shared:
        total += tl.load(shared + row * size + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(result + row * size + column, total.to(result.dtype.element_ty), mask=inside)


def routed_experts_triton(
    x: QuantizedRows,
    routing: ExpertRows,
    w13: Fp4Experts | Fp8Experts,
    w2: Fp4Experts | Fp8Experts,
    limit: float,
    shared: Tensor | None,
    out_dtype: torch.dtype,
) -> Tensor:
    """See `routed_experts`."""
    rows, top_k = routing.experts.shape
    experts, size, width = w2.shape
    data, scale = x.data.contiguous(), x.scale.contiguous()
    on, picks = data.device, rows * top_k
    blocks, groups = (picks + (_ROWS - 1) * experts) // _ROWS + 1, -(-width // RUN)
    inner = torch.empty((picks, width), dtype=torch.float8_e4m3fn, device=on)
    inner_scale = torch.empty((picks, groups), dtype=torch.float32, device=on)
    # The interpreter's bfloat16 is wrong: there products run in float32 and outputs keep it.
    upcast = data.is_cpu
    outputs = torch.empty((picks, size), dtype=torch.float32 if upcast else torch.bfloat16, device=on)
    result = torch.empty((rows, size), dtype=out_dtype, device=on)
    shape = {
        "code_bytes": _CODE_BYTES, "piece_bytes": PIECE_BYTES, "table_shift": TABLE_SHIFT, "rows": _ROWS,
        "columns": _OUTPUTS, "most": triton.next_power_of_2(experts), "upcast": upcast,
    }  # fmt: skip
    _multiply_w13[(blocks, groups)](
        data, scale, *_held(w13), routing.offsets, routing.order, routing.weights, inner, inner_scale,
        experts, top_k, width, size, -(-size // RUN), limit, form=_form(w13), num_warps=_warps(w13), **shape,
    )  # fmt: skip
    _multiply_w2[(blocks, triton.cdiv(size, _OUTPUTS))](
        inner, inner_scale, *_held(w2), routing.offsets, routing.order, outputs,
        experts, top_k, size, width, groups, form=_form(w2), num_warps=_warps(w2), **shape,
    )  # fmt: skip
    _sum_picks[(rows, triton.cdiv(size, _SUM_BLOCK))](
        outputs, routing.slots, outputs if shared is None else shared.contiguous(), result, top_k, size,
        shared is not None, _SUM_BLOCK,
    )  # fmt: skip
    return result


def _held(weights: Fp4Experts | Fp8Experts) -> tuple[Tensor, Tensor]:
    return (weights.data if isinstance(weights, Fp8Experts) else weights.codes), weights.scale


def _form(weights: Fp4Experts | Fp8Experts) -> int:
    assert isinstance(weights, Fp8Experts) or weights.shape[2] % GROUP == 0
    return _FORMS["fp8" if isinstance(weights, Fp8Experts) else weights.form]


def _warps(weights: Fp4Experts | Fp8Experts) -> int:
    """Addresses in the streamed layout take many registers."""
    return 8 if _form(weights) >= 2 else 4
