"""The door of sparse attention: V4's one softmax over window and selected entries, shared key = value."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benthic.errors import KernelInputError
from benthic.kernels.sparse_attention.reference import attend_tiles_ref
from benthic.kernels.sparse_attention.tiles import TilePlan


def sparse_attention(
    query: Tensor,
    keys: Tensor,
    plan: TilePlan,
    sink: Tensor,
    scale: float,
    keep: Sequence[Tensor | None] | None = None,
    *,
    min_rows: int = 1,
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
    if heads < min_rows:
        query, sink = F.pad(query, (0, 0, 0, min_rows - heads)), F.pad(sink, (0, min_rows - heads))
    parts = [
        attend_tiles_ref(query, keys, tiles, sink, scale, None if keep is None else keep[i]).output
        for i, tiles in enumerate(plan.groups)
    ]
    places = parts[0] if len(parts) == 1 else torch.cat(parts)
    return places[:, :heads].index_select(0, plan.order)
