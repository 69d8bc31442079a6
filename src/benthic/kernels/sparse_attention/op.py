"""The door of sparse attention: one softmax over window and selected entries, whose keys hold their values.

V4 has windows, compressed entries and a sink, and a value is its whole key. Latent attention in its absorbed form
(V2, V3, V3.2) has one entry a token, neither window nor sink, and a value is the latent part of its key.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel, uses_cuda_kernel, uses_triton_kernel
from benthic.kernels.kv_storage import PackedKv
from benthic.kernels.product_rows import fewest_product_rows
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.rope import RopeTable, apply_rope
from benthic.kernels.sparse_attention.addresses import Keys
from benthic.kernels.sparse_attention.reference import attend_pieces_ref, attend_tiles_ref, sink_logits
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles, TilePlan
from benthic.kernels.sparse_attention.workspace import (
    DEFAULT_WORKSPACE_BYTES,
    Portion,
    attention_block_bytes,
    cached_rows,
    portion,
    score_block_bytes,
    single_rows_bytes,
    sums_bytes,
)

CHAIN_PRICE = 4
"""How many times longer a key takes in a chain than in a product of 64 rows."""

ROW_CHAIN_PRICE = 2
"""The same where the rows of a product are the many heads of one row."""

MANY_HEADS = 16
"""Fewer heads are not worth a product of their own."""

FEW_PRODUCTS = 8192
"""Heads times keys of a row below which calling a library takes longer than chains."""


def sparse_attention(
    query: Tensor,
    keys: Keys,
    plan: TilePlan,
    sink: Tensor | None,
    scale: float,
    picks: Sequence[Tensor | None] | None = None,
    *,
    value_dim: int | None = None,
    inverse_rope: RopeTable | None = None,
    min_rows: int = 1,
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
    impl: Impl = "auto",
) -> Tensor:
    """Attends every row to the keys its tile shows (model.md 2.4, family.md 3).

    bfloat16 queries of whole groups of 64 heads over packed V4 keys take the kernels of `attend.cu` on Hopper, which
    add in an order of their own: what decides is dtype, shape and storage, never how many rows there are.

    Args:
        query: [R, H, d], rotated.
        keys: [num_slots, d] kv buffer, contiguous, whole pages, finite everywhere; or such rows in the
            official format, which are widened as they are read and have no gradient.
        plan: which rows read which pages.
        sink: [H] logits that join the denominator only, unscaled; None for no sink.
        scale: softmax scale, d^-0.5 in V4.
        picks: for each group, int32 [n, Q, k]: the entries that the indexer chose, ascending, -1 for none; None keeps
            all that are visible.
        value_dim: dv, how many of a key's first numbers are its value; None for all of them.
        inverse_rope: turns the result's last dims back by these angles of the R rows, to the bits of `apply_rope`.
        min_rows: rows that a product needs to be exact on this machine (`kernels.exactness`). A tile of one row makes
            products of H rows, so fewer heads than that are filled up.
        workspace_bytes: bound of the temporaries that grow with the context. Never a matter of bits. Gradients of the
            reference keep everything regardless.

    Returns:
        [R, H, dv] in the query's dtype. Dummy rows hold some finite value, and so does a row without any key: zeros.
        A row's bits depend on its own keys only.
    """
    rows, heads, dim = query.shape
    width = keys.dim if isinstance(keys, PackedKv) else keys.shape[-1]
    if width != dim:
        raise KernelInputError(f"keys have width {width}; the query's head dimension is {dim}")
    value_dim = dim if value_dim is None else value_dim
    if not 0 < value_dim <= dim:
        raise KernelInputError(f"value_dim ({value_dim}) must be at least 1 and at most the keys' width {dim}")
    if sink is not None and sink.shape != (heads,):
        raise KernelInputError(f"sink has shape {tuple(sink.shape)}; it must be ({heads},), one logit a head")
    if rows == 0:
        return query[..., :value_dim]
    sink = sink_logits(query, None) if sink is None else sink
    if uses_cuda_kernel(impl, query) and (impl == "cuda" or _is_for_cuda(query, keys, plan, value_dim)):
        if not _is_for_cuda(query, keys, plan, value_dim):
            raise KernelInputError(
                f"impl='cuda' got queries {query.dtype} {tuple(query.shape)} and keys {type(keys).__name__}; it takes "
                "bfloat16 queries of 64, 128, ... heads of 512 over packed V4 keys, with a window of 1 to 128"
            )
        return _by_cuda(query, keys, plan, sink, scale, picks, inverse_rope, workspace_bytes)
    out = _attend(query, keys, plan, sink, scale, picks, value_dim, min_rows, workspace_bytes, impl)
    return out if inverse_rope is None else apply_rope(out, inverse_rope, inverse=True)


def _attend(
    query: Tensor,
    keys: Keys,
    plan: TilePlan,
    sink: Tensor,
    scale: float,
    picks: Sequence[Tensor | None] | None,
    value_dim: int,
    min_rows: int,
    workspace_bytes: int,
    impl: Impl,
) -> Tensor:
    heads, dim = query.shape[1:]
    if uses_triton_kernel(impl, query) and keys.dtype is query.dtype:
        return _by_triton(query, keys, plan, sink, scale, picks, value_dim, workspace_bytes)
    if query.is_cpu:
        min_rows = max(min_rows, fewest_product_rows(dim, torch.get_num_threads(), value_dim))
    compiled = uses_cpu_kernel(impl, query)
    by_chains = compiled and _takes_chains(query, keys, sink, value_dim)
    parts: list[Tensor] = []

    def is_sparse(tiles: KeyTiles, kept: Tensor | None) -> bool:
        return by_chains and _is_sparse(tiles, kept, query, workspace_bytes)

    groups = list(zip(plan.groups, picks or [None] * len(plan.groups), strict=True))
    for tiles, kept in _in_parts(groups, is_sparse, query) if compiled else groups:
        if is_sparse(tiles, kept):
            parts.append(_single_rows(query, keys, sink, tiles, scale, kept, value_dim))
            continue
        attend, padding = (_products if compiled else _reference), max(min_rows - heads, 0)
        q, b = (F.pad(query, (0, 0, 0, padding)), F.pad(sink, (0, padding))) if padding else (query, sink)
        cut = _portion(q, tiles, workspace_bytes, compiled)
        for first in range(0, tiles.num_tiles, cut.num_tiles):
            some = tiles.part(first, first + cut.num_tiles)
            chosen = None if kept is None else kept[first : first + cut.num_tiles]
            parts.append(attend(q, keys, b, some, scale, chosen, value_dim, cut.num_blocks)[:, :heads])
    places = parts[0] if len(parts) == 1 else torch.cat(parts)
    return places if plan.is_in_order else places.index_select(0, plan.order)


def _is_for_cuda(query: Tensor, keys: Keys, plan: TilePlan, value_dim: int) -> bool:
    from benthic.kernels.sparse_attention.cuda import is_for_cuda

    return all(is_for_cuda(query, keys, tiles, value_dim) for tiles in plan.groups)


def _by_cuda(
    query: Tensor,
    keys: Keys,
    plan: TilePlan,
    sink: Tensor,
    scale: float,
    picks: Sequence[Tensor | None] | None,
    inverse_rope: RopeTable | None,
    workspace_bytes: int,
) -> Tensor:
    from benthic.kernels.sparse_attention.cuda import attend_tiles_cuda

    assert isinstance(keys, PackedKv), "attend.cu reads packed keys"
    groups = list(zip(plan.groups, picks or [None] * len(plan.groups), strict=True))
    rest = (inverse_rope, workspace_bytes)
    if len(groups) == 1:
        return attend_tiles_cuda(query, keys, sink, groups[0][0], scale, groups[0][1], plan.order, *rest)
    parts = [attend_tiles_cuda(query, keys, sink, tiles, scale, kept, None, *rest) for tiles, kept in groups]
    return torch.cat(parts).index_select(0, plan.order)


def _by_triton(
    query: Tensor,
    keys: Keys,
    plan: TilePlan,
    sink: Tensor,
    scale: float,
    picks: Sequence[Tensor | None] | None,
    value_dim: int,
    workspace_bytes: int,
) -> Tensor:
    parts = []
    for tiles, kept in zip(plan.groups, picks or [None] * len(plan.groups), strict=True):
        rest = (tiles, scale, kept, value_dim, workspace_bytes)
        if isinstance(keys, PackedKv):
            parts.append(_triton()(query, keys, sink, *rest))
        else:
            parts.append(with_reference_gradient(_triton(), _whole, (query, keys, sink), *rest))
    places = parts[0] if len(parts) == 1 else torch.cat(parts)
    return places if plan.is_in_order else places.index_select(0, plan.order)


Group = tuple[KeyTiles, Tensor | None]
"""Tiles and their picks."""


def _in_parts(
    groups: Sequence[Group], is_sparse: Callable[[KeyTiles, Tensor | None], bool], query: Tensor
) -> Iterator[Group]:
    """The groups, cut further where products attend: what is in a call is a matter of speed alone.

    Single rows come one by one, each with its own blocks instead of those of the longest; tiles of many rows whose
    scores would not stay in cache come in runs of fewer.
    """
    _, heads, dim = query.shape
    for tiles, kept in groups:
        rows = cached_rows(tiles.rows_per_tile, heads, dim, tiles.num_blocks)
        is_whole = rows == tiles.rows_per_tile > 1 or tiles.bias is not None or _records(query)
        if is_whole or is_sparse(tiles, kept):
            yield tiles, kept
            continue
        for number in range(tiles.num_tiles):
            tile, chosen = tiles.part(number, number + 1), None if kept is None else kept[number : number + 1]
            if tiles.rows_per_tile == 1:
                tile = replace(tile, last_position=int(tile.positions))
            for first in range(0, tiles.rows_per_tile, rows):
                end = first + rows
                yield tile.places(first, end), None if chosen is None else chosen[:, first:end]


def _is_sparse(tiles: KeyTiles, picks: Tensor | None, query: Tensor, workspace_bytes: int) -> bool:
    """True if rows one by one are the faster way: they multiply slowly, but only by the keys that they see."""
    _, heads, dim = query.shape
    entries = tiles.max_visible if picks is None else min(tiles.max_visible, picks.shape[-1])
    listed = tiles.window + entries
    if single_rows_bytes(listed, heads, dim) > workspace_bytes:
        return False
    if tiles.rows_per_tile > 1:
        return picks is not None and tiles.num_blocks * BLOCK > CHAIN_PRICE * listed
    is_short = heads < MANY_HEADS or heads * listed < FEW_PRODUCTS
    return is_short or tiles.num_blocks * BLOCK > ROW_CHAIN_PRICE * listed


def _portion(query: Tensor, tiles: KeyTiles, workspace_bytes: int, compiled: bool) -> Portion:
    """Whole groups while a gradient is recorded: its tape would keep every piece."""
    if _records(query):
        return Portion(tiles.num_tiles, tiles.num_blocks)
    sizes = (tiles.rows_per_tile, *query.shape[1:])
    if not compiled:
        return portion(tiles.num_tiles, tiles.num_blocks, attention_block_bytes(*sizes), workspace_bytes)
    left = workspace_bytes - sums_bytes(*sizes)
    return portion(tiles.num_tiles, tiles.num_blocks, score_block_bytes(*sizes), left)


def _records(query: Tensor) -> bool:
    return torch.is_grad_enabled() and query.requires_grad


def _reference(
    query: Tensor,
    keys: Keys,
    sink: Tensor,
    tiles: KeyTiles,
    scale: float,
    picks: Tensor | None,
    value_dim: int,
    piece: int,
) -> Tensor:
    if piece < tiles.num_blocks:
        return attend_pieces_ref(query, keys, tiles, sink, scale, picks, value_dim, piece)
    return attend_tiles_ref(query, keys, tiles, sink, scale, picks, value_dim).output


def _whole(
    query: Tensor,
    keys: Tensor,
    sink: Tensor,
    tiles: KeyTiles,
    scale: float,
    picks: Tensor | None,
    value_dim: int,
    piece: int = 0,
) -> Tensor:
    """What a compiled kernel's gradient is taken of."""
    return attend_tiles_ref(query, keys, tiles, sink, scale, picks, value_dim).output


def _products(query: Tensor, keys: Keys, sink: Tensor, *rest: object) -> Tensor:
    if isinstance(keys, PackedKv):
        return _cpu()(query, keys, sink, *rest)
    result: Tensor = with_reference_gradient(_cpu(), _whole, (query, keys, sink), *rest)
    return result


def _single_rows(query: Tensor, keys: Keys, sink: Tensor, *rest: object) -> Tensor:
    if isinstance(keys, PackedKv):
        return _chains()(query, keys, sink, *rest)
    result: Tensor = with_reference_gradient(_chains(), _whole, (query, keys, sink), *rest)
    return result


def _takes_chains(query: Tensor, keys: Keys, sink: Tensor, value_dim: int) -> bool:
    is_plain = query.dtype is torch.float32 and keys.dtype is torch.float32 and sink.dtype is torch.float32
    return is_plain and chains_agree_here(query.shape[2], value_dim)


@cache
def _triton() -> Callable[..., Tensor]:
    from benthic.kernels.sparse_attention.kernel import attend_tiles_triton

    return attend_tiles_triton


@cache
def _cpu() -> Callable[..., Tensor]:
    from benthic.kernels.sparse_attention.cpu import attend_tiles_cpu

    return attend_tiles_cpu


@cache
def _chains() -> Callable[..., Tensor]:
    from benthic.kernels.sparse_attention.single_rows_cpu import attend_single_rows

    return attend_single_rows


def chains_agree_here(dim: int, value_dim: int) -> bool:
    """True if single rows may be attended by chains on this machine, see `chains_cpu`."""
    from benthic.kernels.sparse_attention.chains_cpu import chain_len

    return chain_len(dim, torch.get_num_threads(), value_dim) > 0
