"""Attention over key tiles on CUDA, as two Triton kernels: scores of key blocks, then weighted sums of values.

A row lists its keys in blocks of 64: the three aligned blocks that cover its window, then entries, or picks, by their
place in the list. What a program computes follows from one row, 64 keys of its list and a slice of heads or of
columns; sizes of slices follow from widths and dtype alone. With the maximum known before any sum, weights are final,
and a row's sums are one chain over its blocks in ascending order. So its bits depend on its own prefix only, however
rows are cut into tiles, calls and pieces.

    scores    program (row, block, heads): where the keys lie, s = (q . k) * scale, and the block's maximum
    values    program (row, columns, heads): m = max(sink, all maxima); sum e^(s - m), sum e^(s - m) v
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.kv_storage import PackedKv
from benthic.kernels.kv_storage.kernel import load_kv
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, rotary_offset
from benthic.kernels.sparse_attention.addresses import Keys
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles

_RUNTIME = ["first_place", "per_tile", "num_picks", "first", "end", "num_blocks", "window_pages", "window_page",
            "window", "entry_pages", "entry_page", "entry_base", "ratio", "last"]  # fmt: skip


@triton.jit
def _load_plain(keys, slot, start, dim: tl.constexpr, width: tl.constexpr, stride: tl.constexpr):
    column = start + tl.arange(0, width)
    inside = (slot >= 0)[:, None]
    if dim % width != 0:
        inside = inside & (column < dim)[None, :]
    return tl.load(keys + slot[:, None] * stride + column[None, :], mask=inside, other=0.0)


@triton.jit
def _load_keys(keys, slot, start, dim: tl.constexpr, width: tl.constexpr, stride: tl.constexpr, packed: tl.constexpr,
               dtype: tl.constexpr):  # fmt: skip
    """[64, width] columns of the keys in those slots, zeros where the slot is -1."""
    if packed is None:
        return _load_plain(keys, slot, start, dim, width, stride).to(dtype)
    else:
        return load_kv(keys, slot, start, packed[0], packed[1], width, stride, packed[2], packed[3], packed[4],
                       packed[5], dtype)  # fmt: skip


@triton.jit
def _num_seen(position, num_picks, before: tl.constexpr, ratio, has_picks: tl.constexpr):
    """Blocks of a row's list that may hold a key it sees."""
    entries = (position + 1) // ratio if ratio > 0 else 0
    if has_picks:
        entries = tl.minimum(entries, num_picks)
    return before + (entries + 63) // 64


@triton.jit(do_not_specialize=_RUNTIME)
def _scores(
    query, keys, queries, positions, used, sequence, window_table, entry_table, picks, slots, scores, maxima,
    scale, first_place, per_tile, num_picks, first, end, num_blocks, window_pages, window_page, window, entry_pages,
    entry_page, entry_base, ratio,
    num_heads: tl.constexpr, dim: tl.constexpr, stride: tl.constexpr, packed: tl.constexpr, before: tl.constexpr,
    has_picks: tl.constexpr, block_h: tl.constexpr, width: tl.constexpr, wide_dots: tl.constexpr
):  # fmt: skip
    """Scores of one row's blocks first .. end - 1. `slots` and `scores` hold those blocks, `maxima` all blocks."""
    local = tl.program_id(0)
    place = first_place + local
    block = first + tl.program_id(1)
    tile = place // per_tile
    position = tl.load(positions + place).to(tl.int32)
    if place % per_tile >= tl.load(used + tile):
        return
    if block >= _num_seen(position, num_picks, before, ratio, has_picks):
        return
    sequence_row = tl.load(sequence + tile)
    lane = tl.arange(0, 64)
    slot = tl.full((64,), -1, tl.int64)
    if block < before:
        key = (position // 64 - (before - 1) + block) * 64 + lane
        seen = (key >= 0) & (key <= position) & (key > position - window)
        page = tl.load(window_table + sequence_row * window_pages + key // window_page, mask=seen, other=0)
        slot = tl.where(seen, page * window_page + key % window_page, -1)
    else:
        entry = (block - before) * 64 + lane
        if has_picks:
            entry = tl.load(picks + place.to(tl.int64) * num_picks + entry, mask=entry < num_picks, other=-1)
        seen = (entry >= 0) & (entry < (position + 1) // ratio)
        page = tl.load(entry_table + sequence_row * entry_pages + entry // entry_page, mask=seen, other=0)
        slot = tl.where(seen, entry_base + page * entry_page + entry % entry_page, -1)
    head = tl.program_id(2) * block_h + tl.arange(0, block_h)
    is_head = head < num_heads
    row = tl.load(queries + place) * num_heads + head
    dtype: tl.constexpr = tl.float32 if wide_dots else query.dtype.element_ty
    products = tl.zeros((block_h, 64), tl.float32)
    for start in range(0, dim, width):
        column = start + tl.arange(0, width)
        inside = is_head[:, None]
        if dim % width != 0:
            inside = inside & (column < dim)[None, :]
        q = tl.load(query + row[:, None] * dim + column[None, :], mask=inside, other=0.0).to(dtype)
        k = _load_keys(keys, slot, start, dim, width, stride, packed, query.dtype.element_ty).to(dtype)
        products = tl.dot(q, tl.trans(k), products, input_precision="ieee")
    result = tl.where((slot >= 0)[None, :], products * scale, float("-inf"))
    size = (end - first) * 64
    column = (block - first) * 64 + lane
    local = local.to(tl.int64)
    out = scores + (local * num_heads + head)[:, None] * size + column[None, :]
    tl.store(out, result, mask=is_head[:, None])
    tl.store(maxima + (local * num_heads + head) * num_blocks + block, tl.max(result, 1), mask=is_head)
    if tl.program_id(2) == 0:
        tl.store(slots + local * size + column, slot)


@triton.jit(do_not_specialize=_RUNTIME)
def _values(
    keys, sink, positions, used, slots, scores, maxima, sums, totals, out,
    first_place, per_tile, num_picks, first, end, num_blocks, ratio, last,
    num_heads: tl.constexpr, dim: tl.constexpr, value_dim: tl.constexpr, stride: tl.constexpr, packed: tl.constexpr,
    before: tl.constexpr, has_picks: tl.constexpr, block_h: tl.constexpr, width: tl.constexpr, wide_dots: tl.constexpr
):  # fmt: skip
    """Adds blocks first .. end - 1 to a row's sums, which start at 0; in the last piece, divides them.

    `sums` and `totals` carry them from piece to piece.
    """
    local = tl.program_id(0)
    place = first_place + local
    slice_ = tl.program_id(1)
    tile = place // per_tile
    if place % per_tile >= tl.load(used + tile):
        return
    seen = _num_seen(tl.load(positions + place).to(tl.int32), num_picks, before, ratio, has_picks)
    local = local.to(tl.int64)
    head = tl.program_id(2) * block_h + tl.arange(0, block_h)
    is_head = head < num_heads
    sink_logit = tl.load(sink + head, mask=is_head, other=0.0)
    top = sink_logit
    row = local * num_heads + head
    for block in range(0, seen, 16):
        one = block + tl.arange(0, 16)
        inside = is_head[:, None] & (one < seen)[None, :]
        found = tl.load(maxima + row[:, None] * num_blocks + one[None, :], mask=inside, other=float("-inf"))
        top = tl.maximum(top, tl.max(found, 1))
    column = slice_ * width + tl.arange(0, width)
    is_value = is_head[:, None] & (column < value_dim)[None, :]
    is_carried = first > 0
    total = tl.load(totals + row * tl.num_programs(1) + slice_, mask=is_head & is_carried, other=0.0)
    result = tl.load(sums + row[:, None] * value_dim + column[None, :], mask=is_value & is_carried, other=0.0)
    rounded: tl.constexpr = out.dtype.element_ty
    dtype: tl.constexpr = tl.float32 if wide_dots else rounded
    size = (end - first) * 64
    lane = tl.arange(0, 64)
    for block in range(first, tl.minimum(end, seen)):
        key = (block - first) * 64 + lane
        slot = tl.load(slots + local * size + key)
        score = tl.load(scores + row[:, None] * size + key[None, :], mask=is_head[:, None], other=0.0)
        weight = tl.exp2((score - top[:, None]) * 1.4426950408889634)
        total += tl.sum(weight, 1)
        v = _load_keys(keys, slot, slice_ * width, dim, width, stride, packed, rounded).to(dtype)
        result = tl.dot(weight.to(rounded).to(dtype), v, result, input_precision="ieee")
    if last:
        total += tl.exp2((sink_logit - top) * 1.4426950408889634)
        place_row = place.to(tl.int64) * num_heads + head
        result = result / total[:, None]
        tl.store(out + place_row[:, None] * value_dim + column[None, :], result.to(rounded), mask=is_value)
    else:
        tl.store(totals + row * tl.num_programs(1) + slice_, total, mask=is_head)
        tl.store(sums + row[:, None] * value_dim + column[None, :], result, mask=is_value)


def attend_tiles_triton(
    query: Tensor,
    keys: Keys,
    sink: Tensor,
    tiles: KeyTiles,
    scale: float,
    picks: Tensor | None,
    value_dim: int,
    workspace_bytes: int,
    interpreted: bool = False,
) -> Tensor:
    """Attention of one group of tiles, [n*Q, H, dv]; see `sparse_attention` for the arguments.

    Places without a row of their own are left as they were allocated: no row of the pass points at them.

    `interpreted`: dots in float32 alone, because Triton's interpreter cannot do them in bfloat16.
    """
    query, sink = query.contiguous(), sink.contiguous().float()
    places, heads = tiles.queries.shape[0], query.shape[1]
    out = query.new_empty(places, heads, value_dim)
    call = _Call(query, keys, sink, tiles, scale, picks, value_dim, out, interpreted)
    place_bytes = call.num_blocks * BLOCK * (4 * heads + 8)
    at_once = max(1, min(places, workspace_bytes // place_bytes))
    piece = max(1, min(call.num_blocks, workspace_bytes // (BLOCK * (4 * heads + 8))))
    for place in range(0, places, at_once):
        call.run(place, min(at_once, places - place), piece)
    return out


class _Call:
    """Arguments of both kernels for one group of tiles."""

    def __init__(
        self,
        query: Tensor,
        keys: Keys,
        sink: Tensor,
        tiles: KeyTiles,
        scale: float,
        picks: Tensor | None,
        value_dim: int,
        out: Tensor,
        interpreted: bool,
    ) -> None:
        self.query, self.sink, self.tiles, self.scale, self.out = query, sink, tiles, scale, out
        self.picks = None if picks is None else picks.contiguous()
        self.keys, self.stride, self.packed = _stored(keys)
        self.heads, self.dim, self.value_dim = query.shape[1], query.shape[2], value_dim
        self.num_picks = 0 if picks is None else picks.shape[-1]
        entries = tiles.max_visible if picks is None else min(self.num_picks, tiles.max_visible)
        self.num_blocks = max(1, tiles.window_blocks + -(-entries // BLOCK))
        self.wide_dots = interpreted

    def run(self, place: int, count: int, piece: int) -> None:
        """Attends `count` places from `place` on, `piece` blocks at a time."""
        device = self.query.device
        slots = torch.empty(count, piece * BLOCK, dtype=torch.int64, device=device)
        scores = torch.empty(count, self.heads, piece * BLOCK, device=device)
        maxima = torch.empty(count, self.heads, self.num_blocks, device=device)
        cuts = [(first, min(first + piece, self.num_blocks)) for first in range(0, self.num_blocks, piece)]
        width = _value_width(self.value_dim, self.query.dtype, self.packed is not None)
        sums = totals = maxima
        if len(cuts) > 1:
            sums = torch.empty(count, self.heads, self.value_dim, device=device)
            totals = torch.empty(count, self.heads, -(-self.value_dim // width), device=device)
            for cut in cuts:
                self._scores(place, count, cut, slots, scores, maxima)
        for cut in cuts:
            self._scores(place, count, cut, slots, scores, maxima)
            self._values(place, count, cut, width, (slots, scores, maxima, sums, totals))

    def _scores(
        self, place: int, count: int, cut: tuple[int, int], slots: Tensor, scores: Tensor, maxima: Tensor
    ) -> None:
        tiles, (first, end), block_h = self.tiles, cut, heads_at_once(self.query.dtype)
        entries = tiles.entry_table if tiles.entry_table is not None else tiles.window_table
        picks = self.picks if self.picks is not None else tiles.positions
        _scores[(count, end - first, triton.cdiv(self.heads, block_h))](
            self.query, self.keys, tiles.queries, tiles.positions, tiles.used, tiles.sequence, tiles.window_table,
            entries, picks, slots, scores, maxima, self.scale, place, tiles.rows_per_tile, self.num_picks, first, end,
            self.num_blocks, tiles.window_table.shape[1], tiles.window_page, tiles.window, entries.shape[1],
            tiles.entry_page, tiles.entry_base, tiles.ratio, num_heads=self.heads, dim=self.dim, stride=self.stride,
            packed=self.packed, before=tiles.window_blocks, has_picks=self.picks is not None, block_h=block_h,
            width=_score_width(self.dim, self.query.dtype), wide_dots=self.wide_dots, num_warps=4, num_stages=3,
        )  # fmt: skip

    def _values(self, place: int, count: int, cut: tuple[int, int], width: int, buffers: tuple[Tensor, ...]) -> None:
        tiles, (first, end), block_h = self.tiles, cut, heads_at_once(self.query.dtype)
        _values[(count, triton.cdiv(self.value_dim, width), triton.cdiv(self.heads, block_h))](
            self.keys, self.sink, tiles.positions, tiles.used, *buffers, self.out, place, tiles.rows_per_tile,
            self.num_picks, first, end, self.num_blocks, tiles.ratio, int(end == self.num_blocks),
            num_heads=self.heads, dim=self.dim, value_dim=self.value_dim, stride=self.stride, packed=self.packed,
            before=tiles.window_blocks, has_picks=self.picks is not None, block_h=block_h, width=width,
            wide_dots=self.wide_dots, num_warps=4, num_stages=3,
        )  # fmt: skip


def _stored(keys: Keys) -> tuple[Tensor, int, tuple[int, ...] | None]:
    """(buffer, elements from row to row, layout of packed rows for the kernels)."""
    if not isinstance(keys, PackedKv):
        return keys, keys.shape[-1], None
    layout, still = FP8_LAYOUTS[keys.form], keys.dim - keys.rope_dim
    rotary = rotary_offset(keys.dim, keys.rope_dim, keys.form)
    packed = (keys.dim, still, layout.group, layout.scale_bytes, layout.scale_offset(still), rotary)
    return keys.data, keys.data.shape[-1], packed


# Sizes below may follow from widths and dtype only: they decide in which order a product adds.


def heads_at_once(dtype: torch.dtype) -> int:
    """Heads of a program, missing ones included.

    64 rows always take Hopper's `wgmma`. For fewer, Triton orders the terms of a product by how its operand was
    loaded, so packed keys would give other bits than the rows that they hold.
    """
    return 16 if dtype is torch.float32 else 64


def _score_width(dim: int, dtype: torch.dtype) -> int:
    return max(16, min(32 if dtype is torch.float32 else 64, triton.next_power_of_2(dim)))


def _value_width(value_dim: int, dtype: torch.dtype, packed: bool) -> int:
    """Columns of a program; packed rows need it to divide their groups of 64."""
    largest = 64 if packed or dtype is torch.float32 else 128
    return max(16, min(largest, triton.next_power_of_2(value_dim)))
