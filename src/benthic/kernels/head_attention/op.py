"""The door of attention with keys and values of every head."""

from collections.abc import Sequence

import torch
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.choice import Impl, require_reference
from benthic.kernels.head_attention.reference import attend_heads_ref
from benthic.kernels.reference_gradient import with_reference_gradient
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles, TilePlan
from benthic.kernels.sparse_attention.workspace import DEFAULT_WORKSPACE_BYTES, WIDE_BYTES


def head_attention(
    query: Tensor,
    keys_values: Tensor,
    plan: TilePlan,
    scale: float,
    picks: Sequence[Tensor | None] | None = None,
    *,
    workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
    impl: Impl = "auto",
) -> Tensor:
    """Attends every row to the keys its tile shows, each head to its own; no sink (family.md 3 step 6).

    Args:
        query: [R, H, dk], rotated.
        keys_values: [num_slots, H, dk + dv], keys then values; contiguous, whole pages, finite everywhere.
        plan: which rows read which pages.
        scale: softmax scale.
        picks: for each group, int32 [n, Q, k]: the entries that the indexer chose, ascending, -1 for none; None keeps
            all that are visible.
        workspace_bytes: bound of the temporaries that grow with the context. One tile is the least.

    Returns:
        [R, H, dv] in the query's dtype. Dummy rows hold some finite value, and so does a row without any key: zeros.
        A row's bits depend on its own keys only.
        Backward keeps the inputs alone and attends again.
    """
    require_reference(impl, "head_attention")
    _, heads, key_dim = query.shape
    if keys_values.dim() != 3 or keys_values.shape[1] != heads or keys_values.shape[2] <= key_dim:
        raise KernelInputError(
            f"keys_values have shape {tuple(keys_values.shape)}; they must be [slots, {heads}, dk + dv] with a dk of "
            f"{key_dim}, as the query {tuple(query.shape)} has"
        )
    if query.shape[0] == 0:
        return query.new_empty(0, heads, keys_values.shape[2] - key_dim)
    parts: list[Tensor] = []
    for number, tiles in enumerate(plan.groups):
        kept = None if picks is None else picks[number]
        at_once = max(1, workspace_bytes // _tile_bytes(tiles, heads, keys_values.shape[2]))
        for first in range(0, tiles.num_tiles, at_once):
            some = tiles.part(first, first + at_once)
            chosen = None if kept is None else kept[first : first + at_once]
            parts.append(
                with_reference_gradient(attend_heads_ref, attend_heads_ref, (query, keys_values), some, scale, chosen)
            )
    places = parts[0] if len(parts) == 1 else torch.cat(parts)
    return places.index_select(0, plan.order)


def _tile_bytes(tiles: KeyTiles, heads: int, width: int) -> int:
    """Keys and values gathered and widened; scores, masked scores, weights and their cast."""
    return WIDE_BYTES * tiles.num_blocks * BLOCK * heads * (2 * width + 4 * BLOCK)
