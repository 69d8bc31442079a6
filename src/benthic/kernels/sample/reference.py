"""Sampling by inverse distribution in integers.

Weights are w_v = floor(2^40 exp(l_v / T - max)): integers, so their sums are exact in any order and a draw cannot
depend on how a device adds. Tokens less likely than 2^-40 of the best are never drawn.

Kept set: the top_k largest (ties: lower index first); of these, the fewest largest whose mass reaches top_p; of
these, those with w >= min_p times the largest. The draw is the first kept token, in index order, whose cumulative
weight exceeds u times the total.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.precision import wide
from benthic.kernels.sample.random_numbers import uniform

ONE = 2.0**40


class Cuts(NamedTuple):
    """int64 top_k [B], float32 top_p [B] and min_p [B]."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


def sample_ref(logits: Tensor, temperature: Tensor, cuts: Cuts | None, seeds: Tensor, positions: Tensor) -> Tensor:
    logits = wide(logits)
    weights = integer_weights(logits, temperature)
    if cuts is not None:
        weights = torch.where(kept(logits, weights, *cuts), weights, 0)
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1:]
    threshold = (uniform(seeds, positions)[:, None] * total).to(torch.int64).minimum(total - 1)
    drawn = (cumulative <= threshold).sum(-1)
    return torch.where(temperature > 0, drawn.clamp(max=logits.shape[1] - 1), logits.argmax(-1))


def integer_weights(logits: Tensor, temperature: Tensor) -> Tensor:
    """int64 [B, V]; NaN counts as impossible."""
    heat = torch.where(temperature > 0, temperature, 1.0).to(logits.dtype)[:, None]
    relative = (logits - logits.amax(-1, keepdim=True)) / heat
    return (torch.exp(relative).nan_to_num(0.0).to(torch.float64) * ONE).to(torch.int64)


def kept(logits: Tensor, weights: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """bool [B, V]: what top-k, then top-p, then min-p leave."""
    order = torch.sort(logits, dim=-1, descending=True, stable=True).indices
    ranked = weights.gather(1, order)
    rank = torch.arange(logits.shape[1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, logits.shape[1])
    ranked = torch.where(rank < limit[:, None], ranked, 0)
    before = ranked.cumsum(-1) - ranked
    mass = top_p.to(torch.float64)[:, None] * ranked.sum(-1, keepdim=True)
    keep = (before < mass) | (rank == 0)
    keep &= ranked >= (min_p.to(torch.float64)[:, None] * ranked[:, :1])
    return torch.zeros_like(keep).scatter_(1, order, keep)
