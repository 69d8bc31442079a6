"""Where rows go that a pass makes: a buffer of the cache, their slots, and the form in which they lie there."""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.choice import Impl
from benthic.kernels.kv_storage import KeyForm, pack_index, pack_kv
from benthic.kernels.rope import RopeTable


class RowTarget(NamedTuple):
    """Row i is written to slot `slots[i]` of `buffer`; -1 writes nothing, and so do rows beyond the slots.

    buffer: [num_slots, width]: rows as the model computes them, or uint8 in an official format.
    slots: int64 [m], on the device of the buffer.
    form: the official format; None for rows as they are.
    """

    buffer: Tensor
    slots: Tensor
    form: KeyForm | None = None


class BlockEnds(NamedTuple):
    """What a pass does to the compressor state of one ratio, in tensors alone: a captured graph reads them anew.

    Of the R rows of the pass:
        positions: int64 [R], in their sequences.
        before: int64 [R], how many rows of the same chunk stand before the row.
        rings: int64 [R], the first ring slot of the row's sequence; -1 for rows that are nobody's.
        snapshots: int64 [R], the snapshot slot that keeps the row (ratio 4), -1 for none; None: no row is kept.
    Of the m blocks of tokens that end in it:
        ends: int64 [m], the row that holds the block's last token; -1 for no block.
        slots: int64 [m], the entry's slot in the buffers of entries, -1 to store none.
        rope: rotations [m, r/2] at each block's first token.
    `ratio`; `ring_len`, rows of a ring: position p lies at p % ring_len. `by_rows`: chunks are of a few rows, and
    m = R with `ends[i]` i or -1; so it is in decode, and one launch does it all.
    """

    ratio: int
    ring_len: int
    positions: Tensor
    before: Tensor
    rings: Tensor
    snapshots: Tensor | None
    ends: Tensor
    slots: Tensor
    rope: RopeTable
    by_rows: bool


class RawState(NamedTuple):
    """One layer's raw compressor rows, float32, written in place.

    rings: [ring slots, w]; snapshots: [snapshot slots, w / 2], the series that the next block reads, or None.
    """

    rings: Tensor
    snapshots: Tensor | None


class CompressorSide(NamedTuple):
    """One compressor of a layer, and the buffer of its entries: first that of kv entries, then the indexer's.

    ape: float32 [ratio, c d]; gain: [d] of its norm; buffer and form: see `RowTarget`.
    """

    ape: Tensor
    gain: Tensor
    buffer: Tensor
    form: KeyForm | None = None


def store_kv(rows: Tensor, rope_dim: int, target: RowTarget, impl: Impl) -> None:
    """Writes kv rows [R, d] in the target's form."""
    kept, slots = _kept(rows, target.slots)
    if target.form is not None:
        kept = pack_kv(kept, rope_dim, target.form, impl=impl)
    target.buffer.index_copy_(0, slots, kept)


def store_index(rows: Tensor, target: RowTarget, impl: Impl) -> None:
    """Writes indexer keys [R, di] likewise."""
    kept, slots = _kept(rows, target.slots)
    if target.form is not None:
        kept = pack_index(kept, target.form, impl=impl)
    target.buffer.index_copy_(0, slots, kept)


def _kept(rows: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that have a slot, and their slots."""
    rows, has_slot = rows[: len(slots)], slots >= 0
    if bool(has_slot.all()):
        return rows, slots
    chosen = torch.nonzero(has_slot).squeeze(1)
    return rows.index_select(0, chosen), slots.index_select(0, chosen)
