"""The compressor on CUDA by Triton: raw rows in, entries at their place and rows kept for later, in one pass.

A program takes one block and one compressor: it pools the raw rows of each channel (some at a time, in order, under a
running maximum), norms, turns, rounds and stores. Rows come from the pass or, where they are older, from the ring: the
same numbers, so an entry's bits ignore how its tokens were fed.

Where chunks are of a few rows, the program of a chunk's first row goes through the chunk: it pools what ends there, and
only then writes the rows over what the ring no longer needs. Long chunks write in a launch of their own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.compress_kv.kernel import ROWS_AT_ONCE, WARPS, add_rows, pooled_width
from benthic.kernels.entry_write.row_parts import angles, store_index, store_kv, turned
from benthic.kernels.entry_write.targets import BlockEnds, CompressorSide, RawState
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, rotary_offset
from benthic.kernels.rms_norm.kernel import normed

MOST_REGISTERS: dict[int, int | None] = {4: 80, 128: None}
"""Of a thread that pools blocks: more programs of ratio 4 then wait for memory side by side."""
KEPT_AT_ONCE = 32
COLUMNS_AT_ONCE = 128


@triton.jit
def _pooled(
    raw, rings, ape, end, position, before, ring, raw_stride, ring_stride, ring_len,
    first: tl.constexpr, ratio: tl.constexpr, dim: tl.constexpr, width: tl.constexpr, at_once: tl.constexpr
):  # fmt: skip
    """float32 [1, width]: the softmax-weighted sum of each channel over a block's rows."""
    overlaps: tl.constexpr = ratio == 4
    reach: tl.constexpr = 2 * ratio if overlaps else ratio
    series: tl.constexpr = 2 * dim if overlaps else dim
    column = tl.arange(0, width)
    inside = column < dim
    top = tl.full((width,), float("-inf"), tl.float32)
    total = tl.zeros((width,), tl.float32)
    mixed = tl.zeros((width,), tl.float32)
    for run in range(reach // at_once):
        number = run * at_once + tl.arange(0, at_once)
        back = reach - 1 - number
        # A block without predecessor has nothing in its place.
        exists = position >= back
        own = number >= ratio
        shift = tl.where(own, dim, 0) if overlaps else tl.zeros_like(number)
        in_pass = back <= before
        place = first + shift[:, None] + column[None, :]
        source = raw + (end - back)[:, None] * raw_stride + place
        mask = (exists & in_pass)[:, None] & inside[None, :]
        value = tl.load(source, mask=mask, other=0.0)
        gate = tl.load(source + series, mask=mask, other=0.0)
        if before < reach - 1:
            # The remainder of a negative number would be negative.
            slot = ring + (tl.maximum(position - back, 0) % ring_len)
            source = rings + slot[:, None] * ring_stride + place
            mask = (exists & (back > before))[:, None] & inside[None, :]
            value = tl.where(in_pass[:, None], value, tl.load(source, mask=mask, other=0.0))
            gate = tl.where(in_pass[:, None], gate, tl.load(source + series, mask=mask, other=0.0))
        bias = ape + (number % ratio)[:, None] * series + shift[:, None] + column[None, :]
        gate += tl.load(bias, mask=inside[None, :] & (number >= 0)[:, None], other=0.0)
        gate = tl.where(exists[:, None], gate, float("-inf"))
        top, total, mixed = add_rows(value, gate, top, total, mixed)
    return (mixed / total)[None, :]


@triton.jit
def _entry(
    raw, rings, ape, gain, buffer, cos, sin, positions, befores, ring_of, slots, block, end,
    raw_stride, ring_stride, buffer_stride, ring_len, eps,
    first: tl.constexpr, ratio: tl.constexpr, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    at_once: tl.constexpr, is_index: tl.constexpr, rounding: tl.constexpr, packed: tl.constexpr,
    scale_offset: tl.constexpr, rotary_offset: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """One entry of one compressor. `rounding`: the FP8 group of a kv entry; whether an indexer key is rounded."""
    slot = tl.load(slots + block)
    if slot >= 0:
        # Loaded before the rows, so that memory is waited for once.
        column = tl.arange(0, width)
        weight = tl.load(gain + column, mask=column < dim, other=0.0).to(tl.float32)
        c, s = angles(cos, sin, block, dim, rope_dim, width)
        pooled = _pooled(
            raw, rings, ape, end, tl.load(positions + end), tl.load(befores + end), tl.load(ring_of + end),
            raw_stride, ring_stride, ring_len, first, ratio, dim, width, at_once
        )  # fmt: skip
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
    row, rows, raw_stride, ring_stride, snapshot_stride, buffer_stride, ring_len, eps,
    first: tl.constexpr, ratio: tl.constexpr, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    at_once: tl.constexpr, is_index: tl.constexpr, rounding: tl.constexpr, packed: tl.constexpr,
    scale_offset: tl.constexpr, rotary_offset: tl.constexpr, dtype: tl.constexpr, snaps: tl.constexpr
):  # fmt: skip
    """Pools what ends in the chunk that starts at `row`, then keeps its rows."""
    length = 0
    goes_on = row < rows
    while goes_on:
        if tl.load(ends + row + length) >= 0:
            _entry(
                raw, rings, ape, gain, buffer, cos, sin, positions, befores, ring_of, slots, row + length,
                row + length, raw_stride, ring_stride, buffer_stride, ring_len, eps, first, ratio, dim, rope_dim,
                width, at_once, is_index, rounding, packed, scale_offset, rotary_offset, dtype
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


@triton.jit(do_not_specialize=["rows", "ring_len"])
def _compress_chunks(
    raw, rings, snapshots, ape, gain, buffer, index_ape, index_gain, index_buffer, cos, sin, positions, befores,
    ring_of, snapshot_of, ends, slots, rows, raw_stride, ring_stride, snapshot_stride, buffer_stride, index_stride,
    ring_len, eps,
    ratio: tl.constexpr, dim: tl.constexpr, index_dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    index_width: tl.constexpr, at_once: tl.constexpr, kv_group: tl.constexpr, index_rounds: tl.constexpr,
    packed: tl.constexpr, scale_offset: tl.constexpr, rotary_offset: tl.constexpr, dtype: tl.constexpr,
    snaps: tl.constexpr
):  # fmt: skip
    """Program (row, side): the chunk that starts at the row, if one does."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(befores + row) == 0:
        if tl.program_id(1) == 0:
            _side_of_chunk(
                raw, rings, snapshots, ape, gain, buffer, cos, sin, positions, befores, ring_of, snapshot_of, ends,
                slots, row, rows, raw_stride, ring_stride, snapshot_stride, buffer_stride, ring_len, eps, 0, ratio,
                dim, rope_dim, width, at_once, False, kv_group, packed, scale_offset, rotary_offset, dtype, snaps
            )  # fmt: skip
        elif index_dim > 0:
            _side_of_chunk(
                raw, rings, snapshots, index_ape, index_gain, index_buffer, cos, sin, positions, befores, ring_of,
                snapshot_of, ends, slots, row, rows, raw_stride, ring_stride, snapshot_stride, index_stride, ring_len,
                eps, 4 * dim, ratio, index_dim, rope_dim, index_width, at_once, True, index_rounds, packed, 0, 0,
                dtype, snaps
            )  # fmt: skip


@triton.jit(do_not_specialize=["ring_len"])
def _compress_blocks(
    raw, rings, ape, gain, buffer, index_ape, index_gain, index_buffer, cos, sin, positions, befores, ring_of, ends,
    slots, raw_stride, ring_stride, buffer_stride, index_stride, ring_len, eps,
    ratio: tl.constexpr, dim: tl.constexpr, index_dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr,
    index_width: tl.constexpr, at_once: tl.constexpr, kv_group: tl.constexpr, index_rounds: tl.constexpr,
    packed: tl.constexpr, scale_offset: tl.constexpr, rotary_offset: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """Program (block, side)."""
    block = tl.program_id(0).to(tl.int64)
    end = tl.load(ends + block)
    if end >= 0:
        if tl.program_id(1) == 0:
            _entry(
                raw, rings, ape, gain, buffer, cos, sin, positions, befores, ring_of, slots, block, end, raw_stride,
                ring_stride, buffer_stride, ring_len, eps, 0, ratio, dim, rope_dim, width, at_once, False, kv_group,
                packed, scale_offset, rotary_offset, dtype
            )  # fmt: skip
        elif index_dim > 0:
            _entry(
                raw, rings, index_ape, index_gain, index_buffer, cos, sin, positions, befores, ring_of, slots, block,
                end, raw_stride, ring_stride, index_stride, ring_len, eps, 4 * dim, ratio, index_dim, rope_dim,
                index_width, at_once, True, index_rounds, packed, 0, 0, dtype
            )  # fmt: skip


@triton.jit
def _copy_columns(
    raw, target, is_kept, from_row, to_row, raw_stride, target_stride,
    first: tl.constexpr, at: tl.constexpr, count: tl.constexpr, columns: tl.constexpr
):  # fmt: skip
    """Columns first .. first + count - 1 of some rows to columns from `at` on of others."""
    for start in range(0, count, columns):
        column = start + tl.arange(0, columns)
        inside = is_kept[:, None] & (column < count)[None, :]
        values = tl.load(raw + from_row[:, None] * raw_stride + first + column[None, :], mask=inside)
        tl.store(target + to_row[:, None] * target_stride + at + column[None, :], values, mask=inside)


@triton.jit(do_not_specialize=["rows", "ring_len"])
def _keep_rows(
    raw, rings, snapshots, positions, befores, ring_of, snapshot_of, rows, raw_stride, ring_stride, snapshot_stride,
    ring_len,
    ratio: tl.constexpr, dim: tl.constexpr, index_dim: tl.constexpr, width: tl.constexpr, index_width: tl.constexpr,
    snaps: tl.constexpr, columns: tl.constexpr, at_once: tl.constexpr
):  # fmt: skip
    """The last rows of every chunk to its ring, and those before a page boundary to their snapshot."""
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
    """See `compress_entries`: one launch where chunks are of a few rows, else one to pool and one to keep."""
    main, index = sides[0], sides[-1]
    has_index, dim, rope_dim = len(sides) == 2, len(main.gain), 2 * ends.rope.cos.shape[1]
    index_dim = len(index.gain) if has_index else 0
    is_packed, rows, blocks = main.form is not None, len(ends.positions), len(ends.ends)
    snapshots = state.snapshots if ends.snapshots is not None else None
    width, index_width = pooled_width(dim), pooled_width(index_dim or 1)
    if index_rounds or is_packed:
        # A Hadamard transform is as wide as the vector.
        index_width = max(32, triton.next_power_of_2(index_dim or 1))
    sizes = {"ratio": ends.ratio, "dim": dim, "index_dim": index_dim, "width": width, "index_width": index_width}
    forms = {
        "rope_dim": rope_dim,
        "at_once": ROWS_AT_ONCE[ends.ratio],
        "kv_group": 64 if is_packed else kv_group,
        "index_rounds": int(index_rounds or is_packed),
        "packed": is_packed,
        "scale_offset": FP8_LAYOUTS["v4"].scale_offset(dim - rope_dim),
        "rotary_offset": rotary_offset(dim, rope_dim, "v4"),
        "dtype": {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32, torch.float16: tl.float16}[dtype],
    }
    weights = (main.ape, main.gain, main.buffer, index.ape, index.gain, index.buffer, ends.rope.cos, ends.rope.sin)
    strides = (raw.stride(0), state.rings.stride(0))
    buffer_strides = (main.buffer.stride(0), index.buffer.stride(0))
    warps, snaps = WARPS[ends.ratio], snapshots is not None
    snapshot_stride = 0 if snapshots is None else snapshots.stride(0)
    if ends.by_rows:
        if rows:
            _compress_chunks[(rows, len(sides))](
                raw, state.rings, snapshots, *weights, ends.positions, ends.before, ends.rings, ends.snapshots,
                ends.ends, ends.slots, rows, *strides, snapshot_stride, *buffer_strides, ends.ring_len, eps,
                **sizes, **forms, snaps=snaps, num_warps=warps, enable_fp_fusion=False,
            )  # fmt: skip
        return
    if blocks:
        _compress_blocks[(blocks, len(sides))](
            raw, state.rings, *weights, ends.positions, ends.before, ends.rings, ends.ends, ends.slots, *strides,
            *buffer_strides, ends.ring_len, eps, **sizes, **forms, num_warps=warps, maxnreg=MOST_REGISTERS[ends.ratio],
            enable_fp_fusion=False,
        )  # fmt: skip
    if rows:
        _keep_rows[(triton.cdiv(rows, KEPT_AT_ONCE),)](
            raw, state.rings, snapshots, ends.positions, ends.before, ends.rings, ends.snapshots, rows, *strides,
            snapshot_stride, ends.ring_len, **sizes, snaps=snaps, columns=COLUMNS_AT_ONCE, at_once=KEPT_AT_ONCE,
            num_warps=4,
        )  # fmt: skip
