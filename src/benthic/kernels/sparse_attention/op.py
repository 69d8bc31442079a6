"""The door of sparse attention: V4's one softmax over window and selected entries, shared key = value."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, uses_cpu_kernel
from benthic.kernels.product_rows import fewest_product_rows
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.sparse_attention.reference import attend_tiles_ref
from benthic.kernels.sparse_attention.tiles import KeyTiles, TilePlan


def sparse_attention(
    query: Tensor,
    keys: Tensor,
    plan: TilePlan,
    sink: Tensor,
    scale: float,
    keep: Sequence[Tensor | None] | None = None,
    *,
    min_rows: int = 1,
    impl: Impl = "auto",
) -> Tensor:
    """Attends every row to the keys its tile shows, with a sink in the denominator (model.md 2.4).

    Args:
        query: [R, H, d], rotated.
        keys: [num_slots, d] kv buffer (key = value), num_slots a multiple of 64, finite everywhere.
        plan: which rows read which blocks.
        sink: [H] logits that join the denominator only, unscaled.
        scale: softmax scale, d^-0.5.
        keep: for each group, bool [n, Q, entry blocks * 64]: the entries that the indexer kept; None keeps all.
        min_rows: rows that a product needs to be exact on this machine (`kernels.exactness`). A tile of one row makes
            products of H rows, so fewer heads than that are filled up.

    Returns:
        [R, H, d] in the query's dtype. Dummy rows hold some finite value. A row's bits depend on its own keys only.
    """
    rows, heads, dim = query.shape
    if keys.shape[-1] != dim:
        raise KernelInputError(f"keys have width {keys.shape[-1]}; the query's head dimension is {dim}")
    if sink.shape != (heads,):
        raise KernelInputError(f"sink has shape {tuple(sink.shape)}; it must be ({heads},), one logit a head")
    if rows == 0:
        return query
    if query.is_cpu:
        min_rows = max(min_rows, fewest_product_rows(dim, torch.get_num_threads()))
    if heads < min_rows:
        query, sink = F.pad(query, (0, 0, 0, min_rows - heads)), F.pad(sink, (0, min_rows - heads))
    attend = _compiled if uses_cpu_kernel(impl, query) else _reference
    kept = keep if keep is not None else [None] * len(plan.groups)
    parts = [attend(query, keys, sink, tiles, scale, mask) for tiles, mask in zip(plan.groups, kept, strict=True)]
    places = parts[0] if len(parts) == 1 else torch.cat(parts)
    return places[:, :heads].index_select(0, plan.order)


def _reference(query: Tensor, keys: Tensor, sink: Tensor, tiles: KeyTiles, scale: float, keep: Tensor | None) -> Tensor:
    return attend_tiles_ref(query, keys, tiles, sink, scale, keep).output


def _compiled(query: Tensor, keys: Tensor, sink: Tensor, tiles: KeyTiles, scale: float, keep: Tensor | None) -> Tensor:
    is_plain = query.dtype is torch.float32 and keys.dtype is torch.float32 and sink.dtype is torch.float32
    if tiles.rows_per_tile == 1 and is_plain and chains_agree_here(query.shape[2]):
        attend = _single_rows()
    else:
        attend = _cpu()
    result: Tensor = with_reference_gradient(attend, _reference, (query, keys, sink), tiles, scale, keep)
    return result


@cache
def _cpu() -> Callable[..., Any]:
    from benthic.kernels.sparse_attention.cpu import attend_tiles_cpu

    return attend_tiles_cpu


@cache
def _single_rows() -> Callable[..., Any]:
    from benthic.kernels.sparse_attention.single_rows_cpu import attend_single_rows

    return attend_single_rows


def chains_agree_here(dim: int) -> bool:
    """True if single rows may be attended by chains on this machine, see `single_rows_cpu`."""
    from benthic.kernels.sparse_attention.single_rows_cpu import chains_agree

    return chains_agree(dim, torch.get_num_threads())
