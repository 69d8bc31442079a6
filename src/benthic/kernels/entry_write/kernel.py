"""What follows the products of queries and kv rows, on CUDA by Triton: one launch each, a program a row or a few heads.

The values between steps are rounded to the activations' dtype as when the operations run one by one, and sums are made
in their order, without fused multiply-adds but those that are written: training, which takes them one by one, has the
same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from benthic.kernels.entry_write.row_parts import angles, fp8_groups, hadamard, rounded_fp4, store_kv, turned
from benthic.kernels.entry_write.targets import RowTarget
from benthic.kernels.kv_storage.layout import FP8_LAYOUTS, rotary_offset
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.rms_norm.kernel import normed
from benthic.kernels.rope import RopeTable

HEADS_AT_ONCE = 4
INDEX_HEADS_AT_ONCE = 16
KV_WARPS = 4


@triton.jit(do_not_specialize=["num_slots"])
def _write_kv(
    product, latent_gain, kv_gain, cos, sin, buffer, slots, latent, codes, scales, num_slots, row_stride,
    buffer_stride, eps,
    rank: tl.constexpr, dim: tl.constexpr, rope_dim: tl.constexpr, rank_width: tl.constexpr, width: tl.constexpr,
    group: tl.constexpr, packed: tl.constexpr, scale_offset: tl.constexpr, rotary_offset: tl.constexpr,
    quantizes: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    dtype: tl.constexpr = product.dtype.element_ty
    start = product + row * row_stride
    column = tl.arange(0, rank_width)
    x = tl.load(start + column[None, :], mask=(column < rank)[None, :], other=0.0).to(tl.float32)
    place = tl.arange(0, width)
    kv = tl.load(start + rank + place[None, :], mask=(place < dim)[None, :], other=0.0).to(tl.float32)
    # All loads stand first: a row waits for memory once.
    gain = tl.load(latent_gain + column, mask=column < rank, other=0.0).to(tl.float32)
    weight = tl.load(kv_gain + place, mask=place < dim, other=0.0).to(tl.float32)
    c, s = angles(cos, sin, row, dim, rope_dim, width)
    slot = tl.load(slots + row, mask=row < num_slots, other=-1)
    y = normed(x, gain, rank, eps, dtype)
    if quantizes:
        code, scale = fp8_groups(y.to(tl.float32), 128, 1, rank_width)
        bytes = tl.reshape(code, (1, rank_width))
        tl.store(codes + row * rank + column[None, :], bytes, mask=(column < rank)[None, :])
        number = tl.arange(0, rank_width // 128)[None, :]
        tl.store(scales + row * (rank // 128) + number, scale, mask=number < rank // 128)
    else:
        tl.store(latent + row * rank + column[None, :], y, mask=(column < rank)[None, :])
    entry = turned(normed(kv, weight, dim, eps, dtype), c, s, dim, rope_dim, 1, width, dtype)
    store_kv(entry, buffer, slot, buffer_stride, dim, rope_dim, width, group, packed, scale_offset, rotary_offset)


def write_kv_triton(
    product: Tensor,
    latent_gain: Tensor,
    kv_gain: Tensor,
    rope: RopeTable,
    target: RowTarget,
    eps: float,
    kv_group: int,
    quantizes: bool,
) -> Tensor | QuantizedRows:
    """See `write_kv`; scales are powers of two."""
    rows, rank, dim, rope_dim = len(product), len(latent_gain), len(kv_gain), 2 * rope.cos.shape[1]
    rank_width, width = _width(rank), _width(dim)
    latent = codes = scales = None
    if quantizes:
        codes = torch.empty(rows, rank, dtype=torch.float8_e4m3fn, device=product.device)
        scales = torch.empty(rows, rank // 128, dtype=torch.float32, device=product.device)
    else:
        latent = product.new_empty(rows, rank)
    is_packed = target.form is not None
    if rows:
        _write_kv[(rows,)](
            product, latent_gain, kv_gain, rope.cos, rope.sin, target.buffer, target.slots, latent, codes, scales,
            len(target.slots), product.stride(0), target.buffer.stride(0), eps,
            rank=rank, dim=dim, rope_dim=rope_dim, rank_width=rank_width, width=width,
            group=64 if is_packed else kv_group, packed=is_packed,
            scale_offset=FP8_LAYOUTS["v4"].scale_offset(dim - rope_dim),
            rotary_offset=rotary_offset(dim, rope_dim, "v4"), quantizes=quantizes, num_warps=KV_WARPS,
            enable_fp_fusion=False,
        )  # fmt: skip
    if latent is not None:
        return latent
    assert codes is not None and scales is not None
    return QuantizedRows(codes, scales)


@triton.jit
def _some_queries(
    product, cos, sin, query, row, part, eps,
    heads: tl.constexpr, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr, at_once: tl.constexpr
):  # fmt: skip
    """`at_once` heads of attention: normed and turned."""
    dtype: tl.constexpr = product.dtype.element_ty
    head = part * at_once + tl.arange(0, at_once)
    column = tl.arange(0, width)
    place = head[:, None] * dim + column[None, :]
    inside = (head < heads)[:, None] & (column < dim)[None, :]
    x = tl.load(product + place, mask=inside, other=0.0).to(tl.float32)
    c, s = angles(cos, sin, row, dim, rope_dim, width)
    ones = tl.full((width,), 1.0, tl.float32)
    y = turned(normed(x, ones, dim, eps, dtype), c, s, dim, rope_dim, at_once, width, dtype)
    tl.store(query + row * (heads * dim) + place, y, mask=inside)


@triton.jit
def _some_index_queries(
    product, cos, sin, query, row, part,
    heads: tl.constexpr, dim: tl.constexpr, rope_dim: tl.constexpr, width: tl.constexpr, at_once: tl.constexpr,
    rounds: tl.constexpr
):  # fmt: skip
    """`at_once` heads of the indexer: turned, and by Hadamard, and rounded to FP4."""
    dtype: tl.constexpr = product.dtype.element_ty
    head = part * at_once + tl.arange(0, at_once)
    column = tl.arange(0, width)
    place = head[:, None] * dim + column[None, :]
    inside = (head < heads)[:, None] & (column < dim)[None, :]
    x = tl.load(product + place, mask=inside, other=0.0)
    c, s = angles(cos, sin, row, dim, rope_dim, width)
    y = turned(x, c, s, dim, rope_dim, at_once, width, dtype)
    if rounds:
        z = hadamard(y.to(tl.float32), at_once, width).to(dtype).to(tl.float32)
        y = rounded_fp4(z, at_once, width, dtype)
    tl.store(query + row * (heads * dim) + place, y, mask=inside)


@triton.jit
def _query_heads(
    product, cos, sin, query, index_query, row_stride, eps,
    heads: tl.constexpr, dim: tl.constexpr, index_heads: tl.constexpr, index_dim: tl.constexpr,
    rope_dim: tl.constexpr, width: tl.constexpr, index_width: tl.constexpr, rounds: tl.constexpr,
    at_once: tl.constexpr, index_at_once: tl.constexpr
):  # fmt: skip
    """Program (row, k): the k-th run of query heads, and behind those the runs of index heads."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    start = product + row * row_stride
    parts: tl.constexpr = (heads + at_once - 1) // at_once
    if part < parts:
        _some_queries(start, cos, sin, query, row, part, eps, heads, dim, rope_dim, width, at_once)
    elif index_heads > 0:
        _some_index_queries(
            start + heads * dim, cos, sin, index_query, row, part - parts, index_heads, index_dim, rope_dim,
            index_width, index_at_once, rounds
        )  # fmt: skip


def query_heads_triton(
    product: Tensor, heads: int, dim: int, rope: RopeTable, eps: float, index_heads: int, rounds: bool
) -> tuple[Tensor, Tensor | None]:
    """See `query_heads`: queries and, if there are such heads, index queries, rounded to FP4 or not at all."""
    rows, rope_dim = len(product), 2 * rope.cos.shape[1]
    index_dim = (product.shape[1] - heads * dim) // index_heads if index_heads else 0
    query = product.new_empty(rows, heads, dim)
    index_query = product.new_empty(rows, index_heads, index_dim) if index_heads else None
    parts = triton.cdiv(heads, HEADS_AT_ONCE) + triton.cdiv(index_heads, INDEX_HEADS_AT_ONCE)
    if rows:
        _query_heads[(rows, parts)](
            product, rope.cos, rope.sin, query, index_query, product.stride(0), eps,
            heads=heads, dim=dim, index_heads=index_heads, index_dim=index_dim, rope_dim=rope_dim,
            width=_width(dim), index_width=triton.next_power_of_2(max(index_dim, 32)), rounds=rounds,
            at_once=HEADS_AT_ONCE, index_at_once=INDEX_HEADS_AT_ONCE, num_warps=4,
            enable_fp_fusion=False,
        )  # fmt: skip
    return query, index_query


def _width(dim: int) -> int:
    """A power of two, and whole groups of 128."""
    return int(max(128, triton.next_power_of_2(dim)))
