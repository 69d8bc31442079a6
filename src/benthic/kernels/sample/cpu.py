"""Sampling on the CPU: the reference's integers, without sorting the vocabulary.

Only tokens that can be kept are ranked: those whose weight is at least a share of the largest, with a share lowered
until what top-k and top-p ask for is among them. Sums are of integers, so the draws are the reference's, to the bit.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import kernel, part
from benthic.kernels.precision import wide
from benthic.kernels.sample.random_numbers import uniform
from benthic.kernels.sample.reference import ONE, Cuts

SHIFT = 7
"""Each try takes tokens that are down to 2^-7 times less likely than those before."""
NUM_TRIES = 6
"""2^-42 is below the smallest weight there is."""
DIGIT_BITS = 11
LAST_DIGIT = (1 << DIGIT_BITS) - 1
HIGHEST = (1 << 31) - 1


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
            drawn[row] = _pick(weights, uniforms[row])
            continue
        floor, count = _floor(weights, limit, top_p[row])
        ids, kept = np.empty(count, np.int64), np.zeros(count, np.int64)
        _list_candidates(weights, floor, ids)
        ranked = _rank(logits[row], ids)
        _keep(weights, ids, ranked, limit, top_p[row], min_p[row], kept)
        drawn[row] = ids[_pick(kept, uniforms[row])] if count else 0
    return drawn


@part
def _first_largest(logits: Any) -> int:
    best = 0
    for token in range(1, len(logits)):
        if logits[token] > logits[best]:
            best = token
    return best


@part
def _floor(weights: Any, limit: int, top_p: float) -> Any:
    """The weight from which on tokens are candidates, all that top-k and top-p can keep among them; how many are."""
    best, total = np.int64(0), np.int64(0)
    for token in range(weights.size):
        best = max(best, weights[token])
        total += weights[token]
    for attempt in range(1, NUM_TRIES + 1):
        floor = max(best >> (SHIFT * attempt), 1)
        count, mass = 0, np.int64(0)
        for token in range(weights.size):
            if weights[token] >= floor:
                count += 1
                mass += weights[token]
        if count >= limit or (limit == weights.size and float(mass) >= top_p * float(total)) or floor == 1:
            break
    return floor, count


@part
def _list_candidates(weights: Any, floor: int, ids: Any) -> None:
    """Ids of the candidates, ascending."""
    count = 0
    for token in range(weights.size):
        if weights[token] >= floor:
            ids[count] = token
            count += 1


@part
def _rank(logits: Any, ids: Any) -> Any:
    """Places of the candidates by logit, the highest first, equals by lower place: counted by digits of its bits.

    Written out, since numba takes two seconds to compile its own sort.
    """
    keys, places = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    next_keys, next_places = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
    starts = np.empty(1 << DIGIT_BITS, np.int64)
    for place in range(ids.size):
        places[place] = place
        bits = np.int64(np.float32(logits[ids[place]]).view(np.int32))
        keys[place] = HIGHEST - bits if bits >= 0 else HIGHEST + (bits & HIGHEST)  # both zeros alike
    for digit in range(3):
        shift = digit * DIGIT_BITS
        starts[:] = 0
        for place in range(ids.size):
            starts[(keys[place] >> shift) & LAST_DIGIT] += 1
        start = 0
        for value in range(starts.size):
            start, starts[value] = start + starts[value], start
        for place in range(ids.size):
            value = (keys[place] >> shift) & LAST_DIGIT
            next_keys[starts[value]], next_places[starts[value]] = keys[place], places[place]
            starts[value] += 1
        keys, next_keys = next_keys, keys
        places, next_places = next_places, places
    return places


@part
def _keep(weights: Any, ids: Any, ranked: Any, limit: int, top_p: float, min_p: float, kept: Any) -> None:
    """Weights of the candidates, 0 (as they come) for those that are cut off. `ranked`: their places by rank."""
    total, num_ranks = np.int64(0), min(limit, ranked.size)
    if limit == weights.size:
        for token in range(weights.size):
            total += weights[token]
    else:
        for rank in range(num_ranks):
            total += weights[ids[ranked[rank]]]
    before = np.int64(0)
    for rank in range(num_ranks):
        weight = weights[ids[ranked[rank]]]
        if rank > 0 and float(before) >= top_p * float(total):
            break
        if float(weight) >= min_p * float(weights[ids[ranked[0]]]):
            kept[ranked[rank]] = weight
        before += weight


@part
def _pick(weights: Any, u: float) -> int:
    """The first place whose cumulative weight exceeds u times the total."""
    total = np.int64(0)
    for place in range(weights.size):
        total += weights[place]
    threshold = min(np.int64(u * float(total)), total - 1)
    cumulative = np.int64(0)
    for place in range(weights.size):
        cumulative += weights[place]
        if cumulative > threshold:
            return place
    return weights.size - 1
