"""moe_route on the CPU: scores, selection and weights of a row in one loop."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.moe_route.reference import GroupLimit, Routing, Score
from benthic.kernels.numba_kernel import float32s, int64s, kernel, part
from benthic.kernels.numba_math import exp32, sigmoid32, softplus32
from benthic.kernels.precision import EXP_LIMIT

SCORES: dict[Score, int] = {"sqrtsoftplus": 0, "sigmoid": 1, "softmax": 2}
LIMIT = np.float32(-EXP_LIMIT)
NO_LIMIT = GroupLimit(1, 1, 1)


def moe_route_cpu(
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
    """See `moe_route`."""
    logits = logits.contiguous()
    offsets = None if bias is None else bias.to(torch.float32).contiguous()
    rows, num_experts = logits.shape
    selects = experts is None
    chosen = torch.empty((rows, top_k), dtype=torch.int64) if experts is None else experts.contiguous()
    weights = torch.empty((rows, top_k), dtype=torch.float32)
    _route(
        logits.data_ptr(),
        0 if offsets is None else offsets.data_ptr(),
        chosen.data_ptr(),
        weights.data_ptr(),
        rows,
        num_experts,
        top_k,
        SCORES[score],
        scale,
        selects,
        normalize,
        floor,
        *(limit or NO_LIMIT),
    )
    return Routing(weights, chosen)


@kernel
def _route(
    logits_at: int,
    bias_at: int,
    experts_at: int,
    weights_at: int,
    rows: int,
    num_experts: int,
    top_k: int,
    score: int,
    scale: float,
    selects: bool,
    normalize: bool,
    floor: float,
    groups: int,
    kept: int,
    best: int,
) -> None:
    experts, weights = int64s(experts_at, (rows, top_k)), float32s(weights_at, (rows, top_k))
    scores, ranked = np.empty(num_experts, np.float32), np.empty(num_experts, np.float32)
    totals, best_groups = np.empty(groups, np.float32), np.empty(kept, np.int64)
    for row in range(rows):
        _score(float32s(logits_at + 4 * row * num_experts, (num_experts,)), scores, score)
        if selects:
            for e in range(num_experts):
                ranked[e] = scores[e]
            if bias_at:
                bias = float32s(bias_at, (num_experts,))
                for e in range(num_experts):
                    ranked[e] += bias[e]
            if kept < groups:
                _limit(ranked, totals, best_groups, best)
            _select(ranked, experts[row])
        total = np.float32(0.0)
        for k in range(top_k):
            weights[row, k] = scores[experts[row, k]]
            total += weights[row, k]
        total += np.float32(floor)
        for k in range(top_k):
            share = weights[row, k] / total if normalize else weights[row, k]
            weights[row, k] = share * np.float32(scale)


@part
def _score(logits: Any, scores: Any, score: int) -> None:
    if score == 2:
        largest = logits[0]
        for e in range(1, scores.size):
            largest = max(largest, logits[e])
        for e in range(scores.size):
            scores[e] = exp32(logits[e] - largest)
        total = _halved_sum(scores)
        for e in range(scores.size):
            scores[e] /= total
    elif score == 1:
        for e in range(scores.size):
            scores[e] = sigmoid32(max(logits[e], LIMIT))
    else:
        for e in range(scores.size):
            scores[e] = np.sqrt(softplus32(max(logits[e], LIMIT)))


@part
def _halved_sum(values: Any) -> Any:
    """x_i + x_(i + size/2), and so on over the next power of two: the order in which a GPU adds them too."""
    size = 1
    while size < values.size:
        size *= 2
    sums = np.zeros(size, np.float32)
    sums[: values.size] = values
    while size > 1:
        size //= 2
        for i in range(size):
            sums[i] += sums[i + size]
    return sums[0]


@part
def _select(ranked: Any, chosen: Any) -> None:
    """The largest first; of equals the lower index, because only a strictly larger one takes over."""
    for k in range(chosen.size):
        best = 0
        for e in range(1, ranked.size):
            if ranked[e] > ranked[best]:
                best = e
        chosen[k] = best
        ranked[best] = -np.inf


@part
def _limit(ranked: Any, totals: Any, kept: Any, best: int) -> None:
    """Sets all but the best groups to -inf; a group counts for the sum of its `best` largest, largest first."""
    size = ranked.size // totals.size
    members, taken = np.empty(size, np.float32), np.empty(best, np.int64)
    for group in range(totals.size):
        for i in range(size):
            members[i] = ranked[group * size + i]
        _select(members, taken)
        total = ranked[group * size + taken[0]]
        for k in range(1, best):
            total += ranked[group * size + taken[k]]
        totals[group] = total
    _select(totals, kept)
    for group in range(totals.size):
        # `_select` has set the chosen ones to -inf; the sum of finite scores never is.
        if totals[group] != -np.inf:
            for i in range(size):
                ranked[group * size + i] = -np.inf
