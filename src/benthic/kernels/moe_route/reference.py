"""Scores, group limits, exact top-k with ties to the lower expert, weights (model.md 2.8; the family's gates)."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from benthic.kernels.precision import EXP_LIMIT, sigmoid, softplus

Score = Literal["sqrtsoftplus", "sigmoid", "softmax"]


class GroupLimit(NamedTuple):
    """Only experts of the `kept` best of `groups` equal runs of experts may be chosen.

    A group counts for the sum of its `best` largest ranked scores: V2 takes 1 (the largest), V3 takes 2. With one group
    a device this bounds the devices that a token is sent to.
    """

    groups: int
    kept: int
    best: int


class Routing(NamedTuple):
    """Which experts a row goes to: `experts` int64 [R, K], best first (or as given), `weights` float32 [R, K]."""

    weights: Tensor
    experts: Tensor


def moe_route_ref(
    logits: Tensor,
    bias: Tensor | None,
    experts: Tensor | None,
    top_k: int,
    scale: float,
    score: Score,
    normalize: bool,
    floor: float,
    limit: GroupLimit | None,
) -> Routing:
    scores = router_scores(logits, score)
    if experts is None:
        ranked = scores.detach() if bias is None else scores.detach() + bias.detach()
        if limit is not None:
            ranked = within_best_groups(ranked, limit)
        experts = torch.sort(ranked, dim=-1, descending=True, stable=True).indices[:, :top_k].contiguous()
    chosen = scores.gather(1, experts)
    if normalize:
        total = chosen.sum(-1, keepdim=True)
        chosen = chosen / (total + floor if floor else total)
    return Routing(chosen * scale, experts)


def router_scores(logits: Tensor, score: Score) -> Tensor:
    """Positive scores of all experts.

    Logits below -80 count as -80 for the two unbounded scores: the true score underflows, and a row of such logits
    would divide 0 by 0; so it falls back to equal weights instead.
    """
    if score == "softmax":
        return logits.softmax(-1)
    if score == "sigmoid":
        return sigmoid(logits.clamp(min=-EXP_LIMIT))
    return softplus(logits.clamp(min=-EXP_LIMIT)).sqrt()


def within_best_groups(ranked: Tensor, limit: GroupLimit) -> Tensor:
    """[R, E] with -inf in all but the best groups of each row; ties go to the lower group."""
    members = ranked.unflatten(1, (limit.groups, -1))  # [R, G, E/G]
    largest = torch.sort(members, dim=-1, descending=True).values[..., : limit.best]
    order = torch.sort(largest.sum(-1), dim=-1, descending=True, stable=True).indices
    dropped = torch.ones_like(order, dtype=torch.bool).scatter_(1, order[:, : limit.kept], False)
    return members.masked_fill(dropped[..., None], -math.inf).flatten(1)
