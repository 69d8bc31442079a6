"""Products whose inputs are cut by the number of rows: the product's own kernels, given other cuts. See free_forms.

bf16: the order of a weight, which `linear` derives from its shape alone, is a parameter of the launchers. FP8 and FP4
have one chain of inputs and no cut; here a weight's parts of the input are groups (experts) of a grouped product of the
same kernel, laid out so beforehand, whose sums are added by a second launch.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
import triton
from cuda_timing import Calls, Case, num_sets
from torch import Tensor

from benthic.kernels.fp8_product.cuda import multiply_fp8
from benthic.kernels.fp8_product.tiles import FEW, MANY, SOME, Shape
from benthic.kernels.linear import Fp8Weight
from benthic.kernels.linear.cuda import multiply_cuda, takes
from benthic.kernels.linear.kernel import _fold, multiply, product
from benthic.kernels.linear.schedule import Order, order_of
from benthic.kernels.linear.wide import Form, forms
from benthic.kernels.moe_experts import Fp4Experts, Spans, cases
from benthic.kernels.moe_experts import cuda as experts_of
from benthic.kernels.moe_experts.layout import PIECE_BYTES, TILE
from benthic.kernels.moe_route import ExpertRows
from benthic.kernels.quantize import QuantizedRows, quantize_rows

ROWS = (1, 32, 128, 4096)
# Name, groups that every row passes, outputs, inputs, dtype of results.
BF16 = (
    ("q_a and kv", 1, 1536, 4096, torch.bfloat16),
    ("q_b", 1, 32768, 1024, torch.bfloat16),
    ("o_a", 8, 1024, 4096, torch.bfloat16),
    ("o_b", 1, 4096, 8192, torch.bfloat16),
    ("raw rows of 4", 1, 2624, 4096, torch.float32),
    ("gate", 1, 256, 4096, torch.float32),
)
FP8 = {"q_a+kv": (1536, 4096), "queries": (40960, 1024), "o_b": (4096, 8192)}
FP8 |= {"shared w13": (4096, 4096), "shared w2": (4096, 2048)}
PARTS = (2, 4, 8)
EXPERTS = ((6, 1), (32, 24), (256, 1), (256, 3), (256, 24))
"""(experts that are hit, rows of each): one token's, 128 of a rank's, and all experts."""
MOST_LISTED = 600
"""Experts that the kernel's shared memory can list beside its ring."""
PROCESSORS = 132
FOLD_BLOCK = 1024


def bf16_cases() -> Iterator[Case]:
    """Every weight with every number of rows."""
    for name, groups, outputs, inputs, out_dtype in BF16:
        count = num_sets(groups * outputs * inputs * 2, 24)
        weights = [
            torch.randn(groups, outputs, inputs, device="cuda").mul_(inputs**-0.5).bfloat16() for _ in range(count)
        ]
        for rows in ROWS:
            x = torch.randn(rows, groups, inputs, device="cuda", dtype=torch.bfloat16)
            ops = {"exact": partial(product, out_dtype=out_dtype)} | _free_bf16(x, weights[0], out_dtype)
            calls: dict[str, Calls] = {key: [partial(op, x, weight) for weight in weights] for key, op in ops.items()}
            flops = 2 * rows * groups * outputs * inputs
            yield Case(f"bf16 {name} M={rows}", calls, weights[0].nbytes + x.nbytes, flops)


def _free_bf16(x: Tensor, weight: Tensor, out_dtype: torch.dtype) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Both kernels in CUDA C++ with every cut and form, Triton's with none and with that which fills the machine."""
    rows, groups = x.shape[:2]
    _, outputs, inputs = weight.shape
    step, own = order_of(outputs, inputs, x.dtype)[:2]
    tiles = groups * -(-rows // 128) * -(-outputs // 64)
    filling = min(16, inputs // 256, 1 << max(0, (2 * PROCESSORS // tiles).bit_length() - 1))
    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    for segments in sorted({1, 2, 4, 8} - {own}) if takes(x, weight) else ():
        order = Order(step, segments, inputs // segments)
        for form in _forms(rows, groups * -(-outputs // 128) * -(-rows // 128), order):
            shape = "" if form == "few" else " halves" if form.is_halved else f" {form.tile_rows}"
            key = f"free {segments}{shape}"
            found[key] = partial(multiply_cuda, out_dtype=out_dtype, order=order, form=form)
    for segments in sorted({1, filling} - {own}):
        order = Order(step, segments, inputs // segments)
        found[f"free {segments} Triton"] = partial(multiply, out_dtype=out_dtype, order=order)
    return found


def _forms(rows: int, tiles: int, order: Order) -> list[Form | Literal["few"]]:
    """Those of the kernels in CUDA C++ that could be the fastest, whatever `linear` takes."""
    wide = [form for form in forms(order) if (tiles <= PROCESSORS // 2 if form.is_halved else rows >= 512)]
    return ["few", *(wide if rows > 64 else [])]


def fp8_cases() -> Iterator[Case]:
    """Every dense weight with every number of rows."""
    for name, (outputs, inputs) in FP8.items():
        for rows in ROWS:
            size = outputs * inputs + rows * (inputs + 2 * outputs)
            sets = [(_rows(rows, inputs), _fp8_weight(outputs, inputs)) for _ in range(num_sets(size, 24))]
            ends = torch.full((1,), rows, dtype=torch.int32, device="cuda")
            calls: dict[str, Calls] = {
                "exact": [partial(_dense, x, w) for x, w in sets],
                "exact, grouped": [partial(_dense, x, w, ends) for x, w in sets],
            }
            shapes = (None, SOME[1], MANY[2]) if rows == 128 else (None, FEW[0]) if rows == 1 else (None,)
            for parts in PARTS if rows < 4096 else PARTS[:1]:
                cut = [_cut_fp8(x, w, parts) for x, w in sets]
                for shape in shapes:
                    key = f"free {parts}" + ("" if shape is None else f" of {shape.outputs}")
                    calls[key] = [partial(_sum_of_parts, *one, shape) for one in cut]
            yield Case(f"fp8 {name} M={rows}", calls, size, 2 * rows * outputs * inputs, "fp8")


def _rows(rows: int, inputs: int) -> QuantizedRows:
    return quantize_rows(torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16))


def _fp8_weight(outputs: int, inputs: int) -> Fp8Weight:
    data = torch.randint(0, 256, (outputs, inputs), dtype=torch.uint8, device="cuda").bitwise_and_(0xB7)
    scale = torch.rand(-(-outputs // 128), inputs // 128, device="cuda")
    return Fp8Weight(data.view(torch.float8_e4m3fn), scale)


def _dense(x: QuantizedRows, weight: Fp8Weight, ends: Tensor | None = None) -> Tensor:
    return multiply_fp8(x, weight.data[None], weight.scale[None], None, ends, torch.bfloat16)


def _cut_fp8(x: QuantizedRows, weight: Fp8Weight, parts: int) -> tuple[QuantizedRows, Fp8Weight, Tensor]:
    """Rows and weight of each part of the input, and the ends of its rows."""

    def apart(of: Tensor) -> Tensor:
        """[n, I] -> [parts, n, I / parts]"""
        return of.view(len(of), parts, -1).transpose(0, 1).contiguous()

    codes = apart(x.data.view(torch.uint8)).flatten(0, 1).view(torch.float8_e4m3fn)
    rows = QuantizedRows(codes, apart(x.scale).flatten(0, 1))
    data = apart(weight.data.view(torch.uint8)).view(torch.float8_e4m3fn)
    ends = torch.arange(1, parts + 1, dtype=torch.int32, device=data.device) * x.shape[0]
    return rows, Fp8Weight(data, apart(weight.scale)), ends


def _sum_of_parts(x: QuantizedRows, weight: Fp8Weight, ends: Tensor, shape: Shape | None) -> Tensor:
    parts, outputs, _ = weight.data.shape
    sums = multiply_fp8(x, weight.data, weight.scale, None, ends, torch.float32, shape)
    y = sums.new_empty((len(sums) // parts, outputs), dtype=torch.bfloat16)
    _fold[(triton.cdiv(y.numel(), FOLD_BLOCK),)](sums, y, y.numel(), parts, FOLD_BLOCK)
    return y


def expert_cases() -> Iterator[Case]:
    """Both matrices of FP4 experts with even rows: w13 by its kernel for plain results, then w2 the same."""
    for count, rows in EXPERTS:
        for name, inputs in (("w13", 4096), ("w2", 2048)):
            num_bytes = int(count * 4096 * inputs * (0.5 + 1 / 32))
            weights = [_fp4(count, 4096, inputs) for _ in range(num_sets(num_bytes, 12))]
            x = cases.rows(count * rows, inputs, "cuda")
            calls: dict[str, Calls] = {"exact": [partial(_one_chain, *_even(x, count, 1), one, 1) for one in weights]}
            for parts in (2, 4):
                if count * parts <= MOST_LISTED:
                    given = _even(x, count, parts)
                    calls[f"free {parts}"] = [partial(_one_chain, *given, _cut_fp4(w, parts), parts) for w in weights]
            flops = 2 * count * rows * 4096 * inputs
            yield Case(f"fp4 {name} {count} x {rows}", calls, num_bytes, flops, "fp8")


def _fp4(experts: int, outputs: int, inputs: int) -> Fp4Experts:
    shape = (experts, outputs // TILE, inputs // TILE, PIECE_BYTES)
    pieces = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
    pieces[..., TILE * TILE // 2 :] &= 7
    base = torch.full((experts, outputs), 2.0**-12, device="cuda")
    return Fp4Experts(pieces, base, "w2", "row", Spans(7, 7, 0, experts * outputs))


def _cut_fp4(weight: Fp4Experts, parts: int) -> Fp4Experts:
    """Every part of an expert's input as an expert: e * parts + part."""
    experts, tiles, stages, size = weight.codes.shape
    codes = weight.codes.view(experts, tiles, parts, stages // parts, size).transpose(1, 2).flatten(0, 1).contiguous()
    return Fp4Experts(codes, weight.scale.repeat_interleave(parts, 0), weight.kind, weight.form, weight.spans)


def _even(x: QuantizedRows, experts: int, parts: int) -> tuple[Tensor, ExpertRows, ExpertRows, int]:
    """Blocked rows, their routing, that of the sum over parts, and rows that are multiplied together."""
    rows, inputs = x.data.shape
    codes = x.data.view(torch.uint8).view(rows * parts, inputs // parts).view(torch.float8_e4m3fn)
    cut = QuantizedRows(codes, x.scale.view(rows * parts, -1))
    part = torch.arange(rows * parts, device="cuda")
    picks = part // parts % experts * parts + part % parts
    ones = torch.ones(rows, parts, device="cuda")
    routing = cases.from_picks(picks[:, None], ones.view(-1, 1), experts * parts)
    summing = cases.from_picks(picks.view(rows, parts), ones, experts * parts)
    group = experts_of.group_rows_of(rows, 1, experts)
    return experts_of.gather(cut, routing, group), routing, summing, group


def _one_chain(
    blocked: Tensor, routing: ExpertRows, summing: ExpertRows, group: int, weight: Fp4Experts, parts: int
) -> Tensor:
    """The products of every pick, and their sums if an input has parts."""
    y = blocked.new_empty((routing.order.shape[0], weight.shape[1]), dtype=torch.bfloat16)
    experts_of.multiply_w2(blocked, routing, weight, y, group)
    return y if parts == 1 else experts_of.add_picks(y, summing.slots, None, torch.bfloat16)
