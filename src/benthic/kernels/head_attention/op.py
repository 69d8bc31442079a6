"""The door of attention with keys and values of every head."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference
from benthic.kernels.head_attention.reference import attend_heads_ref
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles, TilePlan
from benthic.kernels.sparse_attention.workspace import DEFAULT_WORKSPACE_BYTES, WIDE_BYTES


def head_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    plan: TilePlan,
    scale: float,
    picks: Sequence[Tensor | None] | None = None,
    *,
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
    impl: Impl = "auto",
) -> Tensor:
    """Attends every row to the entries its tile shows, each head to its own keys; no window, no sink (family.md 3).

    Args:
        query: [R, H, dk], rotated.
        keys: [num_slots, H, dk], whole pages, finite everywhere.
        values: [num_slots, H, dv] likewise.
        plan: which rows read which pages; without a window.
        scale: softmax scale.
        picks: for each group, int32 [n, Q, k]: the entries that the indexer chose, ascending, -1 for none; None keeps
            all that are visible.
        workspace_bytes: bound of the temporaries that grow with the context. One tile is the least.

    Returns:
        [R, H, dv] in the query's dtype. Dummy rows hold some finite value, and so does a row without any key: zeros.
        Library products of one tile's shape: bits may depend on what is attended beside a row, unlike those of
        `sparse_attention`. Backward keeps the inputs alone and attends again.
    """
    require_reference(impl, "head_attention")
    rows, heads, key_dim = query.shape
    if keys.shape[1:] != (heads, key_dim) or values.shape[:2] != keys.shape[:2]:
        raise KernelInputError(
            f"keys have shape {tuple(keys.shape)} and values {tuple(values.shape)}; for a query of "
            f"{tuple(query.shape)} they must be [slots, {heads}, {key_dim}] and [slots, {heads}, dv]"
        )
    value_dim = values.shape[2]
    if rows == 0:
        return query.new_empty(0, heads, value_dim)
    # Fast kernels want one width for all three: zeros add nothing to a product.
    dim = max(key_dim, value_dim)
    query, keys, values = (F.pad(x, (0, dim - x.shape[-1])) for x in (query, keys, values))
    both = torch.cat((keys, values), dim=-1).transpose(0, 1).contiguous()
    parts: list[Tensor] = []
    for number, tiles in enumerate(plan.groups):
        assert tiles.window_blocks == 0, "keys of every head are entries: there is no window of them"
        kept = None if picks is None else picks[number]
        at_once = max(1, workspace_bytes // _tile_bytes(tiles, heads, dim))
        for first in range(0, tiles.num_tiles, at_once):
            some = tiles.part(first, first + at_once)
            chosen = None if kept is None else kept[first : first + at_once]
            parts.append(
                with_reference_gradient(attend_heads_ref, attend_heads_ref, (query, both), some, scale, chosen)
            )
    places = parts[0] if len(parts) == 1 else torch.cat(parts)
    return places.index_select(0, plan.order)[..., :value_dim]


def _tile_bytes(tiles: KeyTiles, heads: int, dim: int) -> int:
    """Keys and values gathered and widened; scores and weights, where a device has no fused kernel."""
    return WIDE_BYTES * tiles.num_blocks * BLOCK * heads * (4 * dim + 2 * BLOCK)
