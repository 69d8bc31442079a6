"""The meaning of selection: the first k in the order (score descending, index ascending)."""

import torch
from torch import Tensor


def select_topk_ref(scores: Tensor, k: int) -> Tensor:
    """Keeps everything above the k-th value and the first ties at it.

    The k-th value has no tie order, so the set does not depend on how a library breaks ties or on the row's length.
    """
    if k >= scores.shape[-1]:
        return torch.ones_like(scores, dtype=torch.bool)
    threshold = scores.topk(k, dim=-1).values[..., -1:]
    above = scores > threshold
    ties = scores == threshold
    room = k - above.sum(-1, keepdim=True)
    return above | (ties & (ties.cumsum(-1) <= room))
