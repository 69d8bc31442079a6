"""The compressor on CUDA by Triton: raw rows in, entries at their place and rows kept for later, in one pass.

A program takes one block and one compressor: it pools the raw rows of each channel (some at a time, in order, under a
running maximum), norms, turns, rounds and stores. Rows come from the pass or, where they are older, from the ring: the
same numbers, so an entry's bits ignore how its tokens were fed.

Where chunks are of a few rows, the program of a chunk's first row goes through the chunk: it pools what ends there, and
only then writes the rows over what the ring no longer needs. Long chunks write in a launch of their own.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.compress_kv.kernel import ROWS_AT_ONCE, WARPS, add_rows, pooled_width
from benthic.kernels.entry_write.row_parts import angles, store_index, store_kv, turned
from benthic.kernels.entry_write.targets import BlockEnds, CompressorSide, RawState
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, rotary_offset
from benthic.kernels.rms_norm.kernel import normed

MOST_REGISTERS: dict[int, int | None] = {4: 96, 128: None}
"""Of a thread that pools blocks: more programs of ratio 4 then wait for memory side by side."""
KEPT_AT_ONCE = 32
COLUMNS_AT_ONCE = 64
COLUMN_SHARES = 4


@triton.jit
def _pooled(
    raw, rings, ape, end, position, before, ring, raw_stride, ring_stride, ring_len, zero,
    first: tl.constexpr, ratio: tl.constexpr, dim: tl.constexpr, width: tl.constexpr, at_once: tl.constexpr,
    parts: tl.constexpr, single: tl.constexpr
):  # fmt: skip
    """float32 [1, width]: the softmax-weighted sum of each channel over a block's rows. `single`: a thread reads one
    column at a time, because nothing is known of the alignment of `zero`, and so has all rows of it."""
    overlaps: tl.constexpr = ratio == 4
    reach: tl.constexpr = 2 * ratio if overlaps else ratio
    series: tl.constexpr = 2 * dim if overlaps else dim
    column = tl.arange(0, width)
    inside = (column < dim)[None, :]
    if single:
        column += zero
    top = tl.full((width,), float("-inf"), tl.float32)
    total = tl.zeros((width,), tl.float32)
    mixed = tl.zeros((width,), tl.float32)
    # Of ratio 4 most are: nothing is asked of any row then, which 128 rows at once would pay with spills.
    is_whole = overlaps and (position >= reach - 1) & (before >= reach - 1)
    for run in range(reach // at_once):
        row = tl.arange(0, at_once)
        number = run * at_once + row
        own = number >= ratio
        shift = tl.where(own, dim, 0) if overlaps else tl.zeros_like(number)
        place = shift[:, None] + column[None, :]
        back = reach - 1 - number
        if is_whole:
            near = raw + (end - (reach - 1) + run * at_once) * raw_stride + first
            source = near + (row[:, None] * raw_stride + place)
            value = tl.load(source, mask=inside, other=0.0)
            gate = tl.load(source + series, mask=inside, other=0.0)
        else:
            # A block without predecessor has nothing in its place.
            exists = position >= back
            in_pass = back <= before
            source = raw + (end - back)[:, None] * raw_stride + first + place
            mask = (exists & in_pass)[:, None] & inside
            value = tl.load(source, mask=mask, other=0.0)
            gate = tl.load(source + series, mask=mask, other=0.0)
            if before < reach - 1:
                # The remainder of a negative number would be negative.
                slot = ring + (tl.maximum(position - back, 0) % ring_len)
                source = rings + slot[:, None] * ring_stride + first + place
                mask = (exists & (back > before))[:, None] & inside
                value = tl.where(in_pass[:, None], value, tl.load(source, mask=mask, other=0.0))
                gate = tl.where(in_pass[:, None], gate, tl.load(source + series, mask=mask, other=0.0))
        bias = ape + (number % ratio)[:, None] * series + place
        gate += tl.load(bias, mask=inside & (number >= 0)[:, None], other=0.0)
        gate = tl.where((position >= back)[:, None], gate, float("-inf"))
        top, total, mixed = add_rows(value, gate, top, total, mixed, parts)
    return (mixed / total)[None, :]


@triton.jit
def _entry(
    raw, rings, ape, gain, buffer, cos, sin, positions, befores, ring_of, block, end, slot, raw_stride, ring_stride,
    buffer_stride, ring_len, eps, zero,
    first: tl.constexpr, ratio: tl.constexpr, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    at_once: tl.constexpr, parts: tl.constexpr, single: tl.constexpr, is_index: tl.constexpr, rounding: tl.constexpr,
    packed: tl.constexpr, scale_offset: tl.constexpr, rotary_offset: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """One entry of one compressor. `rounding`: the FP8 group of a kv entry; whether an indexer key is rounded."""
    if slot >= 0:
        column = tl.arange(0, width)
        if ratio != 4:  # memory is waited for once
            weight = tl.load(gain + column, mask=column < dim, other=0.0).to(tl.float32)
            c, s = angles(cos, sin, block, dim, rope_dim, width)
        pooled = _pooled(
            raw, rings, ape, end, tl.load(positions + end), tl.load(befores + end), tl.load(ring_of + end),
            raw_stride, ring_stride, ring_len, zero, first, ratio, dim, width, at_once, parts, single
        )  # fmt: skip
        if ratio == 4:  # before, they would be spilled, and waited for before any row is asked for
            weight = tl.load(gain + column, mask=column < dim, other=0.0).to(tl.float32)
            c, s = angles(cos, sin, block, dim, rope_dim, width)
        pooled = tl.where(column < dim, pooled, 0.0).to(dtype).to(tl.float32)
        x = normed(pooled, weight, dim, eps, dtype)
        x = turned(x, c, s, dim, rope_dim, 1, width, dtype)
        if is_index:
            store_index(x, buffer, slot, buffer_stride, dim, width, rounding > 0, packed)
        else:
            store_kv(
                x, buffer, slot, buffer_stride, dim, rope_dim, width, rounding, packed, scale_offset, rotary_offset
            )  # fmt: skip


@triton.jit
def _keep_row(raw, target, first: tl.constexpr, count: tl.constexpr, wide: tl.constexpr):
    column = tl.arange(0, wide)
    tl.store(target + first + column, tl.load(raw + first + column, mask=column < count), mask=column < count)


@triton.jit
def _keep_series(
    raw, target, first: tl.constexpr, at: tl.constexpr, dim: tl.constexpr, width: tl.constexpr
):  # fmt: skip
    """The first series' values and gates, which the next block reads, side by side."""
    column = tl.arange(0, width)
    inside = column < dim
    tl.store(target + at + column, tl.load(raw + first + column, mask=inside), mask=inside)
    tl.store(target + at + dim + column, tl.load(raw + first + 2 * dim + column, mask=inside), mask=inside)


@triton.jit
def _keep(
    raw, rings, snapshots, positions, ring_of, snapshot_of, row, raw_stride, ring_stride, snapshot_stride, ring_len,
    first: tl.constexpr, ratio: tl.constexpr, dim: tl.constexpr, width: tl.constexpr, snaps: tl.constexpr
):  # fmt: skip
    """Writes one compressor's part of a raw row to its ring slot, and to its snapshot if it has one."""
    ring = tl.load(ring_of + row)
    if ring >= 0:
        source = raw + row * raw_stride
        target = rings + (ring + tl.load(positions + row) % ring_len) * ring_stride
        _keep_row(source, target, first, 4 * dim if ratio == 4 else 2 * dim, 4 * width if ratio == 4 else 2 * width)
        if snaps:
            slot = tl.load(snapshot_of + row)
            if slot >= 0:
                _keep_series(source, snapshots + slot * snapshot_stride, first, first // 2, dim, width)


@triton.jit
def _side_of_chunk(
    raw, rings, snapshots, ape, gain, buffer, cos, sin, positions, befores, ring_of, snapshot_of, ends, slots,
    row, rows, raw_stride, ring_stride, snapshot_stride, buffer_stride, ring_len, eps, zero,
    first: tl.constexpr, ratio: tl.constexpr, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    at_once: tl.constexpr, parts: tl.constexpr, is_index: tl.constexpr, rounding: tl.constexpr, packed: tl.constexpr,
    scale_offset: tl.constexpr, rotary_offset: tl.constexpr, dtype: tl.constexpr, snaps: tl.constexpr
):  # fmt: skip
    """Pools what ends in the chunk that starts at `row`, then keeps its rows."""
    length = 0
    goes_on = row < rows
    while goes_on:
        slot = tl.load(slots + row + length)
        if tl.load(ends + row + length) >= 0:
            _entry(
                raw, rings, ape, gain, buffer, cos, sin, positions, befores, ring_of, row + length, row + length, slot,
                raw_stride, ring_stride, buffer_stride, ring_len, eps, zero, first, ratio, dim, rope_dim, width,
                at_once, parts, parts > 0, is_index, rounding, packed, scale_offset, rotary_offset, dtype
            )  # fmt: skip
        length += 1
        goes_on = row + length < rows
        if goes_on:
            goes_on = tl.load(befores + row + length) == length
    # Some threads may still read what others are about to write over.
    tl.debug_barrier()
    for number in range(length):
        _keep(
            raw, rings, snapshots, positions, ring_of, snapshot_of, row + number, raw_stride, ring_stride,
            snapshot_stride, ring_len, first, ratio, dim, width, snaps
        )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "ring_len", "zero"])
def _compress_chunks(
    raw, rings, snapshots, ape, gain, buffer, index_ape, index_gain, index_buffer, cos, sin, positions, befores,
    ring_of, snapshot_of, ends, slots, rows, raw_stride, ring_stride, snapshot_stride, buffer_stride, index_stride,
    ring_len, eps, zero,
    ratio: tl.constexpr, dim: tl.constexpr, index_dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    index_width: tl.constexpr, at_once: tl.constexpr, parts: tl.constexpr, index_parts: tl.constexpr,
    kv_group: tl.constexpr, index_rounds: tl.constexpr, packed: tl.constexpr, scale_offset: tl.constexpr,
    rotary_offset: tl.constexpr, dtype: tl.constexpr, snaps: tl.constexpr
):  # fmt: skip
    """Program (row, side): the chunk that starts at the row, if one does."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(befores + row) == 0:
        if tl.program_id(1) == 0:
            _side_of_chunk(
                raw, rings, snapshots, ape, gain, buffer, cos, sin, positions, befores, ring_of, snapshot_of, ends,
                slots, row, rows, raw_stride, ring_stride, snapshot_stride, buffer_stride, ring_len, eps, zero, 0,
                ratio, dim, rope_dim, width, at_once, parts, False, kv_group, packed, scale_offset, rotary_offset,
                dtype, snaps
            )  # fmt: skip
        elif index_dim > 0:
            _side_of_chunk(
                raw, rings, snapshots, index_ape, index_gain, index_buffer, cos, sin, positions, befores, ring_of,
                snapshot_of, ends, slots, row, rows, raw_stride, ring_stride, snapshot_stride, index_stride, ring_len,
                eps, zero, 4 * dim, ratio, index_dim, rope_dim, index_width, at_once, index_parts, True, index_rounds,
                packed, 0, 0, dtype, snaps
            )  # fmt: skip


@triton.jit(do_not_specialize=["ring_len", "zero"])
def _compress_blocks(
    raw, rings, ape, gain, buffer, cos, sin, positions, befores, ring_of, ends, slots, raw_stride, ring_stride,
    buffer_stride, ring_len, eps, zero,
    first: tl.constexpr, ratio: tl.constexpr, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    at_once: tl.constexpr, parts: tl.constexpr, single: tl.constexpr, is_index: tl.constexpr, rounding: tl.constexpr,
    packed: tl.constexpr, scale_offset: tl.constexpr, rotary_offset: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """A program a block, of one side."""
    block = tl.program_id(0).to(tl.int64)
    end, slot = tl.load(ends + block), tl.load(slots + block)
    if end >= 0:
        _entry(
            raw, rings, ape, gain, buffer, cos, sin, positions, befores, ring_of, block, end, slot, raw_stride,
            ring_stride, buffer_stride, ring_len, eps, zero, first, ratio, dim, rope_dim, width, at_once, parts, single,
            is_index, rounding, packed, scale_offset, rotary_offset, dtype
        )  # fmt: skip


@triton.jit
def _copy_columns(
    raw, target, is_kept, from_row, to_row, raw_stride, target_stride,
    first: tl.constexpr, at: tl.constexpr, count: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    """This program's share of columns first .. first + count - 1 of some rows to those from `at` on of others."""
    for start in range(tl.program_id(1) * columns, count, tl.num_programs(1) * columns):
        column = start + tl.arange(0, columns)
        inside = is_kept[:, None] & (column < count)[None, :]
        values = tl.load(raw + from_row[:, None] * raw_stride + first + column[None, :], mask=inside)
        tl.store(target + to_row[:, None] * target_stride + at + column[None, :], values, mask=inside)


@triton.jit(do_not_specialize=["rows", "ring_len"])
def _keep_rows(
    raw, rings, snapshots, positions, befores, ring_of, snapshot_of, rows, raw_stride, ring_stride, snapshot_stride,
    ring_len,
    ratio: tl.constexpr, dim: tl.constexpr, index_dim: tl.constexpr, snaps: tl.constexpr, columns: tl.constexpr,
    at_once: tl.constexpr
):  # fmt: skip
    """Program (rows, share of columns): the last rows of every chunk to its ring, and those before a page boundary to
    their snapshot. One program a row would wait for its columns one after the other."""
    row = tl.program_id(0).to(tl.int64) * at_once + tl.arange(0, at_once)
    inside, later = row < rows, row + ring_len
    ring = tl.load(ring_of + row, mask=inside, other=-1)
    before = tl.load(befores + row, mask=inside, other=0)
    beyond = tl.load(befores + later, mask=later < rows, other=-1)
    is_kept = (ring >= 0) & (beyond != before + ring_len)
    if tl.max(is_kept.to(tl.int32), 0) > 0:
        slot = ring + tl.load(positions + row, mask=inside, other=0) % ring_len
        count: tl.constexpr = 4 * dim + 4 * index_dim if ratio == 4 else 2 * dim
        _copy_columns(raw, rings, is_kept, row, slot, raw_stride, ring_stride, 0, 0, count, columns)
    if snaps:
        place = tl.load(snapshot_of + row, mask=inside, other=-1)
        has = place >= 0
        if tl.max(has.to(tl.int32), 0) > 0:
            # The first series' values and gates, of both compressors.
            _copy_columns(raw, snapshots, has, row, place, raw_stride, snapshot_stride, 0, 0, dim, columns)
            _copy_columns(raw, snapshots, has, row, place, raw_stride, snapshot_stride, 2 * dim, dim, dim, columns)
            if index_dim > 0:
                _copy_columns(
                    raw, snapshots, has, row, place, raw_stride, snapshot_stride, 4 * dim, 2 * dim, index_dim, columns
                )  # fmt: skip
                _copy_columns(
                    raw, snapshots, has, row, place, raw_stride, snapshot_stride, 4 * dim + 2 * index_dim,
                    2 * dim + index_dim, index_dim, columns
                )  # fmt: skip


def compress_entries_triton(
    raw: Tensor,
    state: RawState,
    ends: BlockEnds,
    sides: tuple[CompressorSide, ...],
    eps: float,
    kv_group: int,
    index_rounds: bool,
    dtype: torch.dtype,
) -> None:
    """See `compress_entries`: one launch where chunks are of a few rows, else one a side to pool and one to keep."""
    main, index = sides[0], sides[-1]
    has_index, dim, rope_dim = len(sides) == 2, len(main.gain), 2 * ends.rope.cos.shape[1]
    index_dim = len(index.gain) if has_index else 0
    is_packed, rows, blocks = main.form is not None, len(ends.positions), len(ends.ends)
    snapshots = state.snapshots if ends.snapshots is not None else None
    width, index_width = pooled_width(dim), pooled_width(index_dim or 1)
    if index_rounds or is_packed:
        # A Hadamard transform is as wide as the vector.
        index_width = max(32, triton.next_power_of_2(index_dim or 1))
    warps, snaps = WARPS[ends.ratio], snapshots is not None
    at_once = ROWS_AT_ONCE[ends.ratio]
    parts, index_parts = _parts(width, warps, at_once), _parts(index_width, warps, at_once)
    sizes = {"ratio": ends.ratio, "dim": dim, "index_dim": index_dim, "width": width, "index_width": index_width}
    common = {
        "rope_dim": rope_dim,
        "at_once": at_once,
        "packed": is_packed,
        "dtype": {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float16: tl.float16}[dtype],
    }
    offsets = {
        "scale_offset": FP8_LAYOUTS["v4"].scale_offset(dim - rope_dim),
        "rotary_offset": rotary_offset(dim, rope_dim, "v4"),
    }
    group, index_rounding = 64 if is_packed else kv_group, int(index_rounds or is_packed)
    strides = (raw.stride(0), state.rings.stride(0))
    snapshot_stride = 0 if snapshots is None else snapshots.stride(0)
    if ends.by_rows:
        if rows:
            _compress_chunks[(rows, len(sides))](
                raw, state.rings, snapshots, main.ape, main.gain, main.buffer, index.ape, index.gain, index.buffer,
                ends.rope.cos, ends.rope.sin, ends.positions, ends.before, ends.rings, ends.snapshots, ends.ends,
                ends.slots, rows, *strides, snapshot_stride, main.buffer.stride(0), index.buffer.stride(0),
                ends.ring_len, eps, 0, **sizes, **common, **offsets, parts=parts, index_parts=index_parts,
                kv_group=group, index_rounds=index_rounding, snaps=snaps, num_warps=warps, enable_fp_fusion=False,
            )  # fmt: skip
        return
    if blocks:
        _pool_side(
            raw, state, ends, main, eps, warps, **common, **offsets, first=0, dim=dim, width=width, parts=parts,
            single=parts > 0, is_index=False, rounding=group,
        )  # fmt: skip
    if blocks and has_index:
        # A warp has all rows of 128 columns: four of them would share them out, and meet for every sum.
        _pool_side(
            raw, state, ends, index, eps, 1 if index_parts else warps, **common, scale_offset=0, rotary_offset=0,
            first=4 * dim, dim=index_dim, width=index_width, parts=index_parts, single=False, is_index=True,
            rounding=index_rounding,
        )  # fmt: skip
    keep_last_triton(raw, state, ends, sides)


def _pool_side(
    raw: Tensor, state: RawState, ends: BlockEnds, side: CompressorSide, eps: float, warps: int, **constants: Any
) -> None:
    """Entries of one compressor."""
    _compress_blocks[(len(ends.ends),)](
        raw, state.rings, side.ape, side.gain, side.buffer, ends.rope.cos, ends.rope.sin, ends.positions, ends.before,
        ends.rings, ends.ends, ends.slots, raw.stride(0), state.rings.stride(0), side.buffer.stride(0), ends.ring_len,
        eps, 0, ratio=ends.ratio, **constants, num_warps=warps, maxnreg=MOST_REGISTERS[ends.ratio],
        enable_fp_fusion=False,
    )  # fmt: skip


def keep_last_triton(raw: Tensor, state: RawState, ends: BlockEnds, sides: tuple[CompressorSide, ...]) -> None:
    """Rows of long chunks that later passes will pool."""
    rows, dims = len(ends.positions), [len(side.gain) for side in sides]
    if not rows:
        return
    snapshots = state.snapshots if ends.snapshots is not None else None
    _keep_rows[(triton.cdiv(rows, KEPT_AT_ONCE), COLUMN_SHARES)](
        raw, state.rings, snapshots, ends.positions, ends.before, ends.rings, ends.snapshots, rows, raw.stride(0),
        state.rings.stride(0), 0 if snapshots is None else snapshots.stride(0), ends.ring_len, ratio=ends.ratio,
        dim=dims[0], index_dim=dims[1] if len(dims) == 2 else 0, snaps=snapshots is not None,
        columns=COLUMNS_AT_ONCE, at_once=KEPT_AT_ONCE, num_warps=4,
    )  # fmt: skip


def _parts(width: int, warps: int, at_once: int) -> int:
    """Rows that would lie in different warps of a small program: four, which are then added as `add_rows` says; 0 where
    they lie in one thread, or where other sums are left to the layout."""
    return 4 if warps == 4 and width == 128 and at_once % 4 == 0 else 0
