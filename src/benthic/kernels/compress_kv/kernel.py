"""Pooling of a block's raw rows on CUDA: some rows at a time, in order, under a running maximum.

Other kernels take `add_rows` for rows that they hold, and have the bits of this operation if their tiles and warps are
the same and they too are compiled without fused multiply-adds (tested on the device).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.precision import wide

ROWS_AT_ONCE = {4: 8, 128: 32}
"""Raw rows of a block that are added together, by ratio; of other ratios, eight."""
WARPS = {4: 4, 128: 16}
"""Of a program that pools them; of other ratios, four."""


@triton.jit
def _sum_of_rows(x, parts: tl.constexpr):
    """Over the first of two dimensions. With four parts rows of one remainder by four are added in order, then the
    parts in pairs: as four warps add that hold a row each at a time."""
    if parts == 4:
        x = tl.sum(tl.reshape(x, (x.shape[0] // 4, 4, x.shape[1])), 0)
        x = tl.sum(tl.reshape(x, (2, 2, x.shape[1])), 0)
    return tl.sum(x, 0)


@triton.jit
def add_rows(value, gate, top, total, mixed, parts: tl.constexpr = 0):
    """The running maximum, weight and weighted sum [width] after more rows of values and gates [n, width]."""
    higher = tl.maximum(top, tl.max(gate, 0))
    fade = tl.exp(top - higher)
    weight = tl.exp(gate - higher[None, :])
    total = tl.fma(total, fade, _sum_of_rows(weight, parts))
    mixed = tl.fma(mixed, fade, _sum_of_rows(weight * value, parts))
    return higher, total, mixed


def pooled_width(dim: int) -> int:
    """Columns of a program's tile."""
    return int(max(64, triton.next_power_of_2(dim)))


@triton.jit
def _compress(
    raw, ape, sources, first, pooled, raw_step, sources_step, dim,
    ratio: tl.constexpr, overlaps: tl.constexpr, has_first: tl.constexpr, width: tl.constexpr, at_once: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * width + tl.arange(0, width)
    reach: tl.constexpr = 2 * ratio if overlaps else ratio
    inside = (column < dim)[None, :]
    series = 2 * dim if overlaps else dim
    is_first = tl.load(first + block) if has_first else False
    top = tl.full((width,), float("-inf"), tl.float32)
    total, mixed = tl.zeros((width,), tl.float32), tl.zeros((width,), tl.float32)
    for run in range(reach // at_once):
        number = run * at_once + tl.arange(0, at_once)
        # Overlap: the predecessor's first series, then the own block's second.
        shift = tl.where(number >= ratio, dim, 0) if overlaps else tl.zeros_like(number)
        place = shift[:, None] + column[None, :]
        row = raw + tl.load(sources + block * sources_step + number)[:, None] * raw_step + place
        value = tl.load(row, mask=inside, other=0.0)
        bias = tl.load(ape + (number % ratio)[:, None] * series + place, mask=inside, other=0.0)
        gate = tl.load(row + series, mask=inside, other=0.0) + bias
        if has_first:
            absent = (is_first & (number < ratio))[:, None]
            gate, value = tl.where(absent, float("-inf"), gate), tl.where(absent, 0.0, value)
        top, total, mixed = add_rows(value, gate, top, total, mixed)
    tl.store(pooled + block * dim + column, mixed / total, mask=column < dim)


def compress_kv_triton(raw: Tensor, ape: Tensor, sources: Tensor, first: Tensor | None, dim: int) -> Tensor:
    """See `compress_kv`; arguments as `compress_kv_ref`, at most float32."""
    raw = wide(raw) if raw.stride(1) == 1 else wide(raw).contiguous()
    (blocks, reach), ratio = sources.shape, ape.shape[0]
    pooled = torch.empty((blocks, dim), dtype=torch.float32, device=raw.device)
    if blocks:
        width, at_once = pooled_width(dim), ROWS_AT_ONCE.get(ratio, 8)
        _compress[(blocks, triton.cdiv(dim, width))](
            raw, ape.to(torch.float32).contiguous(), sources.contiguous(),
            sources if first is None else first.reshape(-1), pooled, raw.stride(0), reach, dim,
            ratio, reach > ratio, first is not None, width, at_once, num_warps=WARPS.get(ratio, 4),
            enable_fp_fusion=False,
        )  # fmt: skip
    return pooled
