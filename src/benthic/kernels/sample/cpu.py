"""Sampling on the CPU: the reference's integers, without sorting the vocabulary.

Only tokens that can be kept are ranked: those whose weight is at least a share of the largest, with a share lowered
until what top-k and top-p ask for is among them. Sums are of integers, so the draws are the reference's, to the bit.
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from benthic.kernels.numba_kernel import kernel
from benthic.kernels.precision import wide
from benthic.kernels.sample.random_numbers import uniform
from benthic.kernels.sample.reference import ONE, Cuts

SHIFT = 7
"""Each try takes tokens that are down to 2^-7 times less likely than those before."""
NUM_TRIES = 6
"""2^-42 is below the smallest weight there is."""


def sample_cpu(logits: Tensor, temperature: Tensor, cuts: Cuts | None, seeds: Tensor, positions: Tensor) -> Tensor:
    """See `sample`."""
    values = wide(logits).contiguous().numpy()
    heat = temperature.numpy()
    if not (heat > 0).any():
        return torch.from_numpy(_greedy(values))
    exponentials = torch.from_numpy(_relative(values, heat)).exp_().numpy()
    top_k, top_p, min_p = cuts or Cuts(torch.zeros_like(seeds), torch.ones_like(temperature), torch.zeros(len(values)))
    limits = (top_k.numpy(), top_p.to(torch.float64).numpy(), min_p.to(torch.float64).numpy())
    return torch.from_numpy(_draw(exponentials, values, heat, uniform(seeds, positions).numpy(), *limits))


@kernel
def _greedy(logits: Any) -> Any:
    chosen = np.empty(len(logits), np.int64)
    for row in range(len(logits)):
        chosen[row] = _first_largest(logits[row])
    return chosen


@kernel
def _relative(logits: Any, temperature: Any) -> Any:
    """(logits - max) / temperature."""
    rows, vocab_size = logits.shape
    relative = np.empty((rows, vocab_size), np.float32)
    for row in range(rows):
        top = logits[row, _first_largest(logits[row])]
        heat = temperature[row] if temperature[row] > 0 else np.float32(1.0)
        for token in range(vocab_size):
            relative[row, token] = (logits[row, token] - top) / heat
    return relative


@kernel
def _draw(exponentials: Any, logits: Any, temperature: Any, uniforms: Any, top_k: Any, top_p: Any, min_p: Any) -> Any:
    rows, vocab_size = logits.shape
    drawn = np.empty(rows, np.int64)
    everything = np.arange(vocab_size)
    weights = np.empty(vocab_size, np.int64)
    for row in range(rows):
        if temperature[row] <= 0:
            drawn[row] = _first_largest(logits[row])
            continue
        for token in range(vocab_size):
            value = exponentials[row, token]
            weights[token] = np.int64(np.float64(value) * ONE) if value > 0 else 0
        limit = top_k[row] if 0 < top_k[row] < vocab_size else vocab_size
        if limit == vocab_size and top_p[row] >= 1.0 and min_p[row] <= 0.0:
            drawn[row] = _pick(everything, weights, uniforms[row])
            continue
        ids = _candidates(weights, limit, top_p[row])
        kept = _kept(weights[ids], logits[row][ids], limit, weights, top_p[row], min_p[row])
        drawn[row] = _pick(ids, kept, uniforms[row])
    return drawn


@njit
def _first_largest(logits: Any) -> int:
    best = 0
    for token in range(1, len(logits)):
        if logits[token] > logits[best]:
            best = token
    return best


@njit
def _candidates(weights: Any, limit: int, top_p: float) -> Any:
    """Ids, ascending, among which are all that top-k and top-p can keep."""
    vocab_size = len(weights)
    best, total = weights.max(), weights.sum()
    for attempt in range(1, NUM_TRIES + 1):
        floor = max(best >> (SHIFT * attempt), 1)
        count, mass = 0, 0
        for token in range(vocab_size):
            if weights[token] >= floor:
                count += 1
                mass += weights[token]
        if count >= limit or (limit == vocab_size and float(mass) >= top_p * float(total)) or floor == 1:
            break
    return np.nonzero(weights >= floor)[0]


@njit
def _kept(weights: Any, logits: Any, limit: int, row: Any, top_p: float, min_p: float) -> Any:
    """Weights of the candidates, 0 for those that are cut off. Ranks go by logit, then by lower id."""
    order = np.argsort(-logits, kind="mergesort")
    total = row.sum() if limit == len(row) else weights[order[:limit]].sum()
    kept = np.zeros_like(weights)
    before = 0
    for rank in range(min(limit, len(order))):
        weight = weights[order[rank]]
        is_in_mass = rank == 0 or float(before) < top_p * float(total)
        if is_in_mass and float(weight) >= min_p * float(weights[order[0]]):
            kept[order[rank]] = weight
        before += weight
    return kept


@njit
def _pick(ids: Any, weights: Any, u: float) -> int:
    """The first id whose cumulative weight exceeds u times the total."""
    total = weights.sum()
    threshold = min(np.int64(u * float(total)), total - 1)
    cumulative = 0
    for place in range(len(ids)):
        cumulative += weights[place]
        if cumulative > threshold:
            return ids[place]
    return ids[-1]
