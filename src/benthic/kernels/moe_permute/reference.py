"""A stable counting order of picks by expert, in tensor operations whose shapes do not depend on data."""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.precision import wide


class Permutation(NamedTuple):
    """Where each pick of an expert went. A slot is one row of an expert's product.

        picks (row, k)      slots, sorted by expert
        r0 -> e2, e0        e0: r0 .      e2: r0 r1      (. = filler)
        r1 -> e2, e5        e5: r1 .

    source: int64 [N], the row of x in each slot; fillers point at row 0.
    pick: int64 [N], the flat index r * K + k into [R, K] of each slot's pick; fillers point at pick 0.
    slot: int64 [R, K], the slot of each pick.
    group_ends: int32 [E], the slots of expert e are group_ends[e-1] .. group_ends[e] - 1.
    filler: bool [N], slots that no pick reads.
    """

    source: Tensor
    pick: Tensor
    slot: Tensor
    group_ends: Tensor
    filler: Tensor


def moe_permute_ref(experts: Tensor, num_experts: int, min_rows: int, num_slots: int | None) -> Permutation:
    """`num_slots` None: as many as the padded groups need (read by the host). Else N, its excess in the last group."""
    picks = experts.reshape(-1)
    order = torch.sort(picks, stable=True).indices
    counts = torch.zeros(num_experts, dtype=torch.int64, device=picks.device)
    counts.scatter_add_(0, picks, torch.ones_like(picks))
    padded = torch.where(counts > 0, counts.clamp(min=min_rows), 0)
    ends, count_ends = padded.cumsum(0), counts.cumsum(0)
    if num_slots is None:
        num_slots = int(ends[-1])
    # A pick's slot: its place in sorted order, moved by the fillers of all groups before its own.
    moved = (ends - padded) - (count_ends - counts)
    sorted_slots = torch.arange(len(picks), device=picks.device) + moved.gather(0, picks.gather(0, order))
    slot = torch.empty_like(picks).scatter_(0, order, sorted_slots)
    pick = picks.new_zeros(num_slots).scatter_(0, sorted_slots, order)
    filler = torch.ones(num_slots, dtype=torch.bool, device=picks.device)
    filler.scatter_(0, sorted_slots, torch.zeros_like(order, dtype=torch.bool))
    ends[-1:] = num_slots
    source = pick.div(max(experts.shape[1], 1), rounding_mode="floor")
    return Permutation(source, pick, slot.view(experts.shape), ends.to(torch.int32), filler)


def moe_combine_ref(y: Tensor, weights: Tensor | None, slot: Tensor) -> Tensor:
    """sum_k weights[r, k] * y[slot[r, k]], added in order k = 0 .. K-1 in float32."""
    picked = wide(y.index_select(0, slot.reshape(-1))).view(*slot.shape, y.shape[-1])
    if weights is not None:
        picked = picked * weights.to(picked.dtype)[:, :, None]
    terms = picked.unbind(1)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
