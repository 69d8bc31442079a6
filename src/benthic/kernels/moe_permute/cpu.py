"""moe_permute and moe_combine on the CPU: a counting sort, and ordered sums."""

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.moe_permute.reference import Permutation
from benthic.kernels.numba_kernel import bytes8, float32s, int32s, int64s, kernel
from benthic.kernels.numba_math import ONE
from benthic.kernels.precision import wide


def moe_permute_cpu(experts: Tensor, num_experts: int, min_rows: int) -> Permutation:
    """See `moe_permute`; as many slots as the groups need."""
    experts = experts.contiguous()
    ends = torch.empty(num_experts, dtype=torch.int32)
    picks, top_k = experts.numel(), experts.shape[1]
    num_slots = _count_slots(experts.data_ptr(), ends.data_ptr(), picks, num_experts, min_rows)
    source = torch.empty(num_slots, dtype=torch.int64)
    pick = torch.empty(num_slots, dtype=torch.int64)
    slot = torch.empty(experts.shape, dtype=torch.int64)
    filler = torch.empty(num_slots, dtype=torch.bool)
    _fill_slots(
        experts.data_ptr(),
        ends.data_ptr(),
        source.data_ptr(),
        pick.data_ptr(),
        slot.data_ptr(),
        filler.data_ptr(),
        picks,
        top_k,
        num_experts,
        num_slots,
    )
    return Permutation(source, pick, slot, ends, filler)


@kernel
def _count_slots(experts_at: int, ends_at: int, picks: int, num_experts: int, min_rows: int) -> int:
    experts, ends = int64s(experts_at, (picks,)), int32s(ends_at, (num_experts,))
    counts = np.zeros(num_experts, np.int64)
    for i in range(picks):
        counts[experts[i]] += 1
    end = 0
    for e in range(num_experts):
        if counts[e]:
            end += max(counts[e], min_rows)
        ends[e] = end
    return end


@kernel
def _fill_slots(
    experts_at: int,
    ends_at: int,
    source_at: int,
    pick_at: int,
    slot_at: int,
    filler_at: int,
    picks: int,
    top_k: int,
    num_experts: int,
    num_slots: int,
) -> None:
    experts, ends = int64s(experts_at, (picks,)), int32s(ends_at, (num_experts,))
    source, pick, slot = int64s(source_at, (num_slots,)), int64s(pick_at, (num_slots,)), int64s(slot_at, (picks,))
    filler = bytes8(filler_at, (num_slots,))
    source[:] = 0
    pick[:] = 0
    filler[:] = 1
    free = np.zeros(num_experts, np.int64)
    for e in range(1, num_experts):
        free[e] = ends[e - 1]
    for i in range(picks):
        place = free[experts[i]]
        free[experts[i]] += 1
        slot[i] = place
        pick[place] = i
        source[place] = i // top_k
        filler[place] = 0


def moe_combine_cpu(y: Tensor, weights: Tensor | None, slot: Tensor) -> Tensor:
    """See `moe_combine`."""
    values, slot = wide(y).contiguous(), slot.contiguous()
    factors = None if weights is None else wide(weights).contiguous()
    rows, top_k = slot.shape
    result = torch.empty((rows, y.shape[1]), dtype=torch.float32)
    if result.numel():
        factors_at = 0 if factors is None else factors.data_ptr()
        _combine(values.data_ptr(), slot.data_ptr(), factors_at, result.data_ptr(), rows, top_k, *values.shape)
    return result


@kernel
def _combine(
    y_at: int, slot_at: int, weights_at: int, result_at: int, rows: int, top_k: int, num_slots: int, size: int
) -> None:
    y, slot = float32s(y_at, (num_slots, size)), int64s(slot_at, (rows, top_k))
    result = float32s(result_at, (rows, size))
    for row in range(rows):
        for k in range(top_k):
            term = y[slot[row, k]]
            weight = float32s(weights_at, (rows, top_k))[row, k] if weights_at else ONE
            if k == 0:
                for i in range(size):
                    result[row, i] = term[i] * weight
            else:
                for i in range(size):
                    result[row, i] += term[i] * weight
