"""The meaning of selection: the first k in the order (score descending, index ascending)."""

import torch
from torch import Tensor


def select_topk_ref(scores: Tensor, k: int) -> Tensor:
    """Keeps everything above the k-th value and the first ties at it; see `select_topk`.

    The k-th value has no tie order, so the set does not depend on how a library breaks ties or on the row's length.
    """
    width = scores.shape[-1]
    kept = scores > -torch.inf
    if k < width:
        threshold = scores.topk(k, dim=-1).values[..., -1:]
        above = scores > threshold
        ties = scores == threshold
        room = k - above.sum(-1, keepdim=True)
        kept = kept & (above | (ties & (ties.cumsum(-1) <= room)))
    index = torch.arange(width, dtype=torch.int32, device=scores.device)
    chosen = torch.where(kept, index, width).topk(min(k, width), dim=-1, largest=False).values
    # A library may leave the order of a partial sort open.
    chosen = chosen.sort(dim=-1).values
    return chosen.masked_fill(chosen == width, -1)
