"""Scores, exact top-k with ties to the lower expert, weights normalised over the chosen (model.md 2.8)."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from benthic.kernels.precision import EXP_LIMIT, sigmoid, softplus

Score = Literal["sqrtsoftplus", "sigmoid", "softmax"]


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
) -> Routing:
    scores = router_scores(logits, score)
    if experts is None:
        ranked = scores.detach() if bias is None else scores.detach() + bias.detach()
        experts = torch.sort(ranked, dim=-1, descending=True, stable=True).indices[:, :top_k].contiguous()
    chosen = scores.gather(1, experts)
    if normalize:
        chosen = chosen / chosen.sum(-1, keepdim=True)
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
