"""Index scores on CUDA as a Triton kernel: one row against 64 entries a step, heads summed in one fixed order.

A score follows from one row and one entry, in blocks of 64 entries at absolute places, and all sizes follow from widths
and dtype: the bits of a score depend neither on the tile nor on the piece that it is computed in.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.kv_storage import PackedIndex
from benthic.kernels.kv_storage.kernel import load_fp4, load_fp8
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS
from benthic.kernels.sparse_attention.addresses import Blocks, IndexKeys
from benthic.kernels.sparse_attention.kernel import heads_at_once
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles

BLOCKS_AT_ONCE = 4
"""Blocks of a program, which then reads its query once."""
COLUMNS_AT_ONCE = 32
"""Of float32 vectors, whose products are chains of single multiplications: all 128 at once would be spilled."""


@triton.jit
def _products_of_piece(
    query, keys, row, is_head, slot, seen, products,
    at: tl.constexpr, dim: tl.constexpr, stride: tl.constexpr, piece: tl.constexpr, dtype: tl.constexpr
):  # fmt: skip
    """Products of heads and plain keys with those of columns `at` and on added, one by one."""
    column = at + tl.arange(0, piece)
    inside = (column < dim)[None, :]
    q = tl.load(query + row[:, None] * dim + column[None, :], mask=is_head[:, None] & inside, other=0.0).to(dtype)
    k = tl.load(keys + slot[:, None] * stride + column[None, :], mask=seen[:, None] & inside, other=0.0)
    return tl.dot(q, tl.trans(k.to(dtype)), acc=products, input_precision="ieee")


@triton.jit(do_not_specialize=["per_tile", "first", "end", "pages", "page", "ratio", "gamma_step"])
def _index_scores(
    query, gamma, keys, queries, positions, used, sequence, table, out,
    per_tile, first, end, pages, page, ratio, gamma_step, gamma_scale,
    num_heads: tl.constexpr, dim: tl.constexpr, stride: tl.constexpr, form: tl.constexpr, layout: tl.constexpr,
    block_h: tl.constexpr, width: tl.constexpr, at_once: tl.constexpr, wide_dots: tl.constexpr, piece: tl.constexpr
):  # fmt: skip
    place = tl.program_id(0)
    tile = place // per_tile
    lane = tl.arange(0, 64)
    size = (end - first) * 64
    start = first + tl.program_id(1) * at_once
    limit = (tl.load(positions + place).to(tl.int32) + 1) // ratio
    if place % per_tile >= tl.load(used + tile):
        limit = 0
    head = tl.arange(0, block_h)
    column = tl.arange(0, width)
    is_head = head < num_heads
    query_row = tl.load(queries + place)
    row = query_row * num_heads + head
    inside = is_head[:, None] & (column < dim)[None, :]
    dtype: tl.constexpr = tl.float32 if wide_dots else query.dtype.element_ty
    if piece == width:
        q = tl.load(query + row[:, None] * dim + column[None, :], mask=inside, other=0.0).to(dtype)
    weight = tl.load(gamma + query_row * gamma_step + head, mask=is_head, other=0.0).to(tl.float32) * gamma_scale
    base = tl.load(sequence + tile) * pages
    for block in range(start, tl.minimum(start + at_once, end)):
        entry = block * 64 + lane
        seen = entry < limit
        found = tl.load(table + base + entry // page, mask=seen, other=0)
        slot = tl.where(seen, found * page + entry % page, -1)
        if piece < width:
            products = tl.zeros((block_h, 64), tl.float32)
            for at in tl.static_range(0, width, piece):
                products = _products_of_piece(
                    query, keys, row, is_head, slot, seen, products, at, dim, stride, piece, dtype
                )  # fmt: skip
        elif form == "plain":
            place_of = keys + slot[:, None] * stride + column[None, :]
            k = tl.load(place_of, mask=seen[:, None] & (column < dim)[None, :], other=0.0)
            products = tl.dot(q, tl.trans(k.to(query.dtype.element_ty).to(dtype)), input_precision="ieee")
        elif form == "fp4":
            k = load_fp4(keys, slot, dim, width, stride)
            products = tl.dot(q, tl.trans(k.to(query.dtype.element_ty).to(dtype)), input_precision="ieee")
        else:
            k = load_fp8(keys, slot, 0, dim, width, stride, layout[0], layout[1], layout[2])
            products = tl.dot(q, tl.trans(k.to(query.dtype.element_ty).to(dtype)), input_precision="ieee")
        scores = tl.sum(tl.maximum(products, 0.0) * weight[:, None], 0)
        target = out + place.to(tl.int64) * size + (block - first) * 64 + lane
        tl.store(target, tl.where(seen, scores, float("-inf")))


def index_scores_triton(
    query: Tensor,
    gamma: Tensor,
    keys: IndexKeys,
    tiles: KeyTiles,
    blocks: Blocks,
    interpreted: bool = False,
    gamma_scale: float = 1.0,
) -> Tensor:
    """See `index_scores`; places without a row of their own see nothing.

    `interpreted`: dots in float32 alone, because Triton's interpreter cannot do them in bfloat16.
    """
    query, table = query.contiguous(), tiles.entry_table
    gamma = gamma if gamma.stride(1) == 1 else gamma.contiguous()
    assert table is not None, "a layer of ratio 0 has no entries"
    _, heads, dim = query.shape
    first, end = blocks
    out = torch.empty(tiles.num_tiles, tiles.rows_per_tile, (end - first) * BLOCK, device=query.device)
    is_wide = query.dtype is torch.float32 and not isinstance(keys, PackedIndex)
    data, layout, form = (keys.data if isinstance(keys, PackedIndex) else keys), None, "plain"
    width = max(16, triton.next_power_of_2(dim))
    if isinstance(keys, PackedIndex):
        form, width, fp8 = ("fp4" if keys.form == "v4" else "fp8"), max(32, width), FP8_LAYOUTS[keys.form]
        layout = (fp8.group, fp8.scale_bytes, fp8.scale_offset(dim))
        assert form == "fp4" or width <= fp8.group, f"keys of width {dim} have several scales, which are not read"
    _index_scores[(tiles.queries.shape[0], triton.cdiv(end - first, BLOCKS_AT_ONCE))](
        query, gamma, data, tiles.queries, tiles.positions, tiles.used, tiles.sequence, table, out,
        tiles.rows_per_tile, first, end, table.shape[1], tiles.entry_page, tiles.ratio, gamma.stride(0), gamma_scale,
        num_heads=heads, dim=dim, stride=data.shape[-1], form=form, layout=layout,
        block_h=max(heads_at_once(query.dtype), triton.next_power_of_2(heads)), width=width, at_once=BLOCKS_AT_ONCE,
        wide_dots=interpreted, piece=min(width, COLUMNS_AT_ONCE) if is_wide else width,
        num_warps=8 if query.dtype is torch.float32 else 4, num_stages=3,
    )  # fmt: skip
    return out
