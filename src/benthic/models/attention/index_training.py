"""How the indexer learns: by KL against the attention that its layer really pays (selection has no gradient).

Everything that attention computes is detached here; gradients reach the indexer's own weights only.
"""

import torch
from torch import Tensor

from benthic.kernels.index_scores import index_scores
from benthic.kernels.sparse_attention import BLOCK, KeyTiles, TilePlan
from benthic.kernels.sparse_attention.reference import attend_tiles_ref


def layer_index_loss(
    index_query: Tensor,
    gamma: Tensor,
    index_keys: Tensor,
    query: Tensor,
    keys: Tensor,
    plan: TilePlan,
    sink: Tensor | None,
    scale: float,
    num_rows: int,
) -> Tensor:
    """Mean KL(attention over entries || softmax of index scores) over rows that see an entry. Scalar, fp32.

    Attention is summed over heads and normalised over the visible entries. Source: the indexer's warm-up of
    DeepSeek-V3.2 (section 2.1.1), applied to compressed entries in V4.
    """
    total, count = [], []
    base = 0
    for tiles in plan.groups:
        places = tiles.queries.numel()
        here = plan.order[:num_rows] - base
        inside = (here >= 0) & (here < places)
        # Rows of other groups mark a place past the end: none of this group's may be unmarked by them.
        own = torch.zeros(places + 1, dtype=torch.bool, device=query.device)
        own = own.index_fill(0, torch.where(inside, here, places), True)[:places]
        if tiles.max_visible:
            loss, rows = _group_loss(index_query, gamma, index_keys, query, keys, tiles, sink, scale, own)
            total.append(loss)
            count.append(rows)
        base += places
    if not total:
        return gamma.sum() * 0.0
    return torch.stack(total).sum() / torch.stack(count).sum().clamp(min=1)


def _group_loss(
    index_query: Tensor,
    gamma: Tensor,
    index_keys: Tensor,
    query: Tensor,
    keys: Tensor,
    tiles: KeyTiles,
    sink: Tensor | None,
    scale: float,
    own: Tensor,
) -> tuple[Tensor, Tensor]:
    scores = index_scores(index_query, gamma, index_keys, tiles)
    with torch.no_grad():
        sink = None if sink is None else sink.detach()
        attended = attend_tiles_ref(query.detach(), keys.detach(), tiles, sink, scale, None)
        mass = (attended.weights[..., tiles.window_blocks * BLOCK :] / attended.denominator[..., None]).sum(2)
        target = mass / mass.sum(-1, keepdim=True).clamp(min=1e-9)
        visible = torch.isfinite(scores)
        counted = visible.any(-1) & own.view(scores.shape[:2])
    log_scores = scores.masked_fill(~visible, -1e30).log_softmax(-1).clamp(min=-50.0)
    gap = torch.log(target.clamp(min=1e-9)) - log_scores
    return ((target * gap).sum(-1) * counted).sum(), counted.sum()
