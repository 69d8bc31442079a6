"""moe_permute and moe_combine on CUDA: one launch each, without fillers.

A program of the permutation owns an expert: it counts the picks of those before it, then lists its own in order. A
program of the sum owns a run of columns of one row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.moe_permute.reference import Permutation

_MOST_PICKS, _COLUMNS = 4096, 1024


@triton.jit
def _permute(experts, source, pick_out, slot_out, ends, filler, num_picks, top_k, block: tl.constexpr):
    expert = tl.program_id(0)
    place = tl.arange(0, block)
    before, own = tl.zeros((block,), tl.int32), tl.zeros((block,), tl.int32)
    for start in range(0, num_picks, block):
        pick = start + place
        chosen = tl.load(experts + pick, mask=pick < num_picks, other=-1)
        before += ((chosen >= 0) & (chosen < expert)).to(tl.int32)
        own += (chosen == expert).to(tl.int32)
    first = tl.sum(before, 0)
    tl.store(ends + expert, first + tl.sum(own, 0))
    for start in range(0, num_picks, block):
        pick = start + place
        is_own = tl.load(experts + pick, mask=pick < num_picks, other=-1) == expert
        slot = first + tl.cumsum(is_own.to(tl.int32), 0) - 1
        tl.store(source + slot, (pick // top_k).to(tl.int64), mask=is_own)
        tl.store(pick_out + slot, pick.to(tl.int64), mask=is_own)
        tl.store(slot_out + pick, slot.to(tl.int64), mask=is_own)
        tl.store(filler + slot, tl.zeros((block,), tl.int8), mask=is_own)
        first += tl.sum(is_own.to(tl.int32), 0)


@triton.jit
def _combine(
    y, slots, weights, out, width, row_stride, top_k: tl.constexpr, has_weights: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    total = tl.zeros((columns,), tl.float32)
    for k in tl.static_range(top_k):
        slot = tl.load(slots + row * top_k + k)
        term = tl.load(y + slot * row_stride + column, mask=inside, other=0.0).to(tl.float32)
        if has_weights:
            term = term * tl.load(weights + row * top_k + k)
        if k == 0:
            total = term
        else:
            total = total + term
    tl.store(out + row * width + column, total, mask=inside)


def moe_permute_triton(experts: Tensor, num_experts: int) -> Permutation:
    """See `moe_permute`; N = R * K slots, none of which is a filler."""
    experts = experts.contiguous()
    picks, on = experts.numel(), experts.device
    source, pick, slot = torch.empty((3, picks), dtype=torch.int64, device=on).unbind(0)
    ends = torch.empty(num_experts, dtype=torch.int32, device=on)
    filler = torch.empty(picks, dtype=torch.bool, device=on)
    block = min(_MOST_PICKS, max(triton.next_power_of_2(picks), 128))
    _permute[(num_experts,)](
        experts, source, pick, slot, ends, filler.view(torch.int8), picks, experts.shape[1], block,
        num_warps=4 if block <= 1024 else 8,
    )  # fmt: skip
    return Permutation(source, pick, slot.view(experts.shape), ends, filler)


def moe_combine_triton(y: Tensor, weights: Tensor | None, slot: Tensor) -> Tensor:
    """See `moe_combine`: float32 terms added in order, each product rounded before it is added."""
    y = y if y.stride(1) == 1 else y.contiguous()
    (rows, top_k), width = slot.shape, y.shape[1]
    out = torch.empty((rows, width), dtype=torch.float32, device=y.device)
    if not out.numel():
        return out
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    factors = out if weights is None else weights.contiguous()
    _combine[(rows, triton.cdiv(width, columns))](
        y, slot.contiguous(), factors, out, width, y.stride(0), top_k, weights is not None, columns,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
