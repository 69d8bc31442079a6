"""Selection on the CPU: the k-th value by counting digits of the scores' bits, then one pass in order of index.

Three counts of 11, 11 and 10 bits find the k-th largest value of a row in time that no arrangement of its scores, ties
included, can worsen.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, inlined, int32s, kernel, part

DIGIT_BITS = (11, 11, 10)
"""Width of each digit, from the highest."""


def select_topk_cpu(scores: Tensor, k: int) -> Tensor:
    """See `select_topk`; scores of at most float32."""
    width = scores.shape[-1]
    values = scores.to(torch.float32).contiguous()
    picks = torch.empty((*scores.shape[:-1], min(k, width)), dtype=torch.int32)
    if picks.numel():
        _select(values.data_ptr(), picks.data_ptr(), values.numel() // width, width, picks.shape[-1])
    return picks


@kernel
def _select(scores_at: int, picks_at: int, rows: int, width: int, k: int) -> None:
    scores, bits = float32s(scores_at, (rows, width)), int32s(scores_at, (rows, width))
    picks = int32s(picks_at, (rows, k))
    ordered, counts = np.empty(width, np.int64), np.empty(1 << max(DIGIT_BITS), np.int64)
    for row in range(rows):
        visible = 0
        for j in range(width):
            ordered[j] = _rank(bits[row, j], scores[row, j])
            visible += ordered[j] >= 0
        target = picks[row]
        target[:] = -1
        threshold, room = _kth_largest(ordered, k, counts) if visible > k else (np.int64(-1), np.int64(0))
        _list(ordered, threshold, room, target)


@inlined
def _rank(bits: Any, score: Any) -> Any:
    """A number in 0 .. 2^32 - 1 in the order of the scores, both zeros alike; -1 for -inf."""
    if score == -np.inf:
        return np.int64(-1)
    whole = np.int64(bits)
    return (np.int64(1) << 31) + whole if whole >= 0 else -whole


@part
def _kth_largest(ordered: Any, k: int, counts: Any) -> Any:
    """The k-th largest of more than k ranks, and how many of its equals belong to the k."""
    prefix, room, length = np.int64(0), np.int64(k), 32
    for bits in DIGIT_BITS:
        length -= bits
        size = 1 << bits
        counts[:size] = 0
        for j in range(ordered.size):
            rank = ordered[j]
            if rank >= 0 and rank >> (length + bits) == prefix:
                counts[(rank >> length) & (size - 1)] += 1
        digit = size - 1
        while counts[digit] < room:
            room -= counts[digit]
            digit -= 1
        prefix = (prefix << bits) | digit
    return prefix, room


@part
def _list(ordered: Any, threshold: Any, room: Any, target: Any) -> None:
    """Indices of the ranks above the threshold and of the first `room` at it."""
    count = 0
    for j in range(ordered.size):
        if ordered[j] > threshold:
            target[count] = j
            count += 1
        elif ordered[j] == threshold and room > 0:
            target[count] = j
            count += 1
            room -= 1
