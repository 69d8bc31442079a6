"""The rows of every expert, beside the experts of every row: what a kernel over experts needs to know.

Nothing here has a size that depends on data, and nothing is read by the host.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from benthic.kernels.moe_route.reference import Routing


class ExpertRows(NamedTuple):
    """Routing of R rows to K of E experts, both ways; a pick is the flat index r * K + k.

        picks (row, k)      order: picks by expert, stable        slots
        r0 -> e2, e0        e0: 1    e2: 0 2    e5: 3              r0: 1 0
        r1 -> e2, e5        offsets: 0 1 1 3 3 3 4                 r1: 2 3

    experts: int32 [R, K], best first (or as given).
    weights: float32 [R, K]; 0 for rows that are not live.
    counts: int32 [E], the picks of each expert.
    offsets: int32 [E + 1]; expert e has order[offsets[e]] .. order[offsets[e + 1] - 1].
    order: int32 [R * K], picks sorted by expert, then by row; -1 behind the last pick of a live row.
    slots: int32 [R, K], the place of each pick in `order`; -1 for rows that are not live.
    """

    experts: Tensor
    weights: Tensor
    counts: Tensor
    offsets: Tensor
    order: Tensor
    slots: Tensor


def expert_rows_ref(routing: Routing, num_experts: int, num_rows: Tensor | None) -> ExpertRows:
    """The picks of a routing in order of experts; only the first `num_rows` rows are live."""
    experts, on = routing.experts, routing.experts.device
    rows, top_k = experts.shape
    live = torch.ones(rows, dtype=torch.bool, device=on)
    if num_rows is not None:
        live = torch.arange(rows, device=on) < num_rows.reshape(())
    # Rows that are not live go behind the last expert.
    picks = torch.where(live[:, None], experts, num_experts).reshape(-1)
    order = torch.sort(picks, stable=True).indices
    places = torch.arange(rows * top_k, device=on)
    slots = torch.empty_like(places).scatter_(0, order, places).view(rows, top_k)
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=on)
    counts = counts.scatter_add_(0, picks, torch.ones_like(picks))[:num_experts]
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return ExpertRows(
        experts.to(torch.int32),
        routing.weights.masked_fill(~live[:, None], 0.0),
        counts.to(torch.int32),
        offsets.to(torch.int32),
        torch.where(places < offsets[-1], order, -1).to(torch.int32),
        slots.masked_fill(~live[:, None], -1).to(torch.int32),
    )
