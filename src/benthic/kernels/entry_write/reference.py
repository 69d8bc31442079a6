"""The meaning of the entry epilogues: the operations that they fuse, one after the other."""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.formats import ScaleFormat
from benthic.kernels.choice import Impl
from benthic.kernels.compress_kv import CompletedBlocks, compress_kv
from benthic.kernels.entry_write.rounding import IndexRounding, round_index_vector, round_kv_entry
from benthic.kernels.entry_write.targets import (
    BlockEnds,
    CompressorSide,
    RawState,
    RowTarget,
    store_index,
    store_kv,
)
from benthic.kernels.quantize import QuantizedRows, quantize_rows
from benthic.kernels.rms_norm import rms_norm
from benthic.kernels.rope import RopeTable, apply_rope


class Queries(NamedTuple):
    """query: [R, H, d], normed and turned; index_query: [R, Hi, di], turned and rounded, if it was asked for."""

    query: Tensor
    index_query: Tensor | None


def write_kv_ref(
    product: Tensor,
    latent_gain: Tensor,
    kv_gain: Tensor,
    rope: RopeTable,
    target: RowTarget,
    eps: float,
    kv_group: int,
    linear_scale: ScaleFormat | None,
    impl: Impl = "reference",
) -> Tensor | QuantizedRows:
    latent, kv = product.split([len(latent_gain), len(kv_gain)], dim=-1)
    rope_dim = 2 * rope.cos.shape[1]
    kv = apply_rope(rms_norm(kv, kv_gain, eps, impl=impl), rope, impl=impl)
    store_kv(round_kv_entry(kv, rope_dim, kv_group), rope_dim, target, impl)
    latent = rms_norm(latent, latent_gain, eps, impl=impl)
    return latent if linear_scale is None else quantize_rows(latent, linear_scale)


def query_heads_ref(
    product: Tensor,
    heads: int,
    dim: int,
    rope: RopeTable,
    eps: float,
    index_heads: int,
    index_rounding: IndexRounding,
    impl: Impl = "reference",
) -> Queries:
    rows, width = product.shape[0], heads * dim
    query = rms_norm(product[:, :width].view(rows, heads, dim), None, eps, impl=impl)
    query = apply_rope(query, rope, impl=impl)
    if not index_heads:
        return Queries(query, None)
    index = product[:, width:].view(rows, index_heads, -1)
    return Queries(query, round_index_vector(apply_rope(index, rope, impl=impl), index_rounding))


def compress_entries_ref(
    raw: Tensor,
    state: RawState,
    ends: BlockEnds,
    sides: tuple[CompressorSide, ...],
    eps: float,
    kv_group: int,
    index_rounding: IndexRounding,
    dtype: torch.dtype,
    impl: Impl = "reference",
) -> None:
    rows = torch.cat([raw, state.rings])
    chosen = torch.nonzero(ends.ends >= 0).squeeze(1)
    if len(chosen):
        rope = RopeTable(ends.rope.cos.index_select(0, chosen), ends.rope.sin.index_select(0, chosen))
        slots, blocks = ends.slots.index_select(0, chosen), _blocks(ends, chosen, len(raw))
        column = 0
        for number, side in enumerate(sides):
            width = 2 * side.ape.shape[1]
            pooled = compress_kv(rows[:, column : column + width], side.ape, blocks, impl=impl).to(dtype)
            entry = apply_rope(rms_norm(pooled, side.gain, eps, impl=impl), rope, impl=impl)
            target, rope_dim = RowTarget(side.buffer, slots, side.form), 2 * rope.cos.shape[1]
            if number == 0:
                store_kv(round_kv_entry(entry, rope_dim, kv_group), rope_dim, target, impl)
            else:
                store_index(round_index_vector(entry, index_rounding), target, impl)
            column += width
    _keep_raw(raw, state, ends, sides)


def _blocks(ends: BlockEnds, chosen: Tensor, num_rows: int) -> CompletedBlocks:
    """The chosen blocks, whose raw rows lie in [rows of the pass | rings]."""
    last = ends.ends.index_select(0, chosen)
    position, before = ends.positions.index_select(0, last), ends.before.index_select(0, last)
    reach = 2 * ends.ratio if ends.ratio == 4 else ends.ratio
    back = torch.arange(reach - 1, -1, -1, device=last.device)
    source = (position[:, None] - back).clamp(min=0)
    back = position[:, None] - source
    in_ring = num_rows + ends.rings.index_select(0, last)[:, None] + source % ends.ring_len
    sources = torch.where(back <= before[:, None], last[:, None] - back, in_ring)
    first_token = position - (ends.ratio - 1)
    first = (first_token == 0)[:, None, None] if ends.ratio == 4 else None
    nowhere = torch.zeros(0, dtype=torch.int64).numpy()
    return CompletedBlocks(ends.ratio, first_token, sources, first, nowhere, nowhere)


def _keep_raw(raw: Tensor, state: RawState, ends: BlockEnds, sides: tuple[CompressorSide, ...]) -> None:
    """The last rows of every chunk to its ring, and those before a page boundary to their snapshot."""
    num_rows = len(ends.positions)
    later = torch.arange(num_rows, device=raw.device) + ends.ring_len
    inside = later.clamp(max=max(num_rows - 1, 0))
    is_overwritten = (later < num_rows) & (ends.before.index_select(0, inside) == ends.before + ends.ring_len)
    kept = torch.nonzero((ends.rings >= 0) & ~is_overwritten).squeeze(1)
    slots = (ends.rings + ends.positions % ends.ring_len).index_select(0, kept)
    state.rings.index_copy_(0, slots, raw.index_select(0, kept))
    if ends.snapshots is None or state.snapshots is None:
        return
    kept = torch.nonzero(ends.snapshots >= 0).squeeze(1)
    rows, column, parts = raw.index_select(0, kept), 0, []
    for side in sides:
        dim = side.ape.shape[1] // 2
        parts += [rows[:, column : column + dim], rows[:, column + 2 * dim : column + 3 * dim]]
        column += 4 * dim
    state.snapshots.index_copy_(0, ends.snapshots.index_select(0, kept), torch.cat(parts, dim=1))
