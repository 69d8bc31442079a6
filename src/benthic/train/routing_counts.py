"""Where a step's rows went: load of experts, devices touched by a row, picks dropped, layer by layer.

Counts are integers on the device, added over batches and steps; shares and ratios are made of them when they are read.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from benthic.models.trace import Trace
from benthic.train.balance_losses import touched_devices
from benthic.train.expert_map import ExpertMap


class RoutingCounts(NamedTuple):
    """Counts over real rows, int64; L layers with routed experts, in order of their numbers.

    `loads` [L, E] rows that chose each expert; `touched` [L] devices, summed over rows; `most` [L] devices that one row
    touched at most; `dropped` [L] picks that were dropped; `rows` scalar.
    """

    loads: Tensor
    touched: Tensor
    most: Tensor
    dropped: Tensor
    rows: Tensor

    def plus(self, other: "RoutingCounts") -> "RoutingCounts":
        """Of both."""
        return RoutingCounts(
            self.loads + other.loads,
            self.touched + other.touched,
            torch.maximum(self.most, other.most),
            self.dropped + other.dropped,
            self.rows + other.rows,
        )

    def max_over_mean(self) -> Tensor:
        """Load of each layer's busiest expert over the mean, fp32 [L]."""
        loads = self.loads.to(torch.float32)
        return loads.amax(1) / loads.mean(1)

    def mean_devices(self) -> Tensor:
        """Devices that a row touches, on average, fp32 [L]."""
        return self.touched / self.rows

    def summary(self) -> Tensor:
        """Over all layers, fp32 [4]: the largest load over the mean, devices on average and at most, dropped share."""
        if not len(self.loads):
            return torch.zeros(4, device=self.rows.device)
        most = self.most.amax().to(torch.float32)
        dropped = self.dropped.sum() / self.loads.sum()
        return torch.stack([self.max_over_mean().amax(), self.mean_devices().mean(), most, dropped])

    def dropped_share(self) -> Tensor:
        """Share of picks that were dropped, fp32 [L]."""
        return self.dropped / self.loads.sum(1)


def describe_counts(counts: RoutingCounts, experts: ExpertMap) -> dict[str, Any]:
    """Layer by layer, ready for JSON: `load` is each expert's share of the mean. Waits for the device."""
    host = RoutingCounts(*(count.cpu() for count in counts))
    loads = host.loads.to(torch.float32)
    columns = {
        "max_over_mean": host.max_over_mean(),
        "devices": host.mean_devices(),
        "most_devices": host.most,
        "dropped": host.dropped_share(),
        "load": loads / loads.mean(1, keepdim=True),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {str(n): dict(zip(columns, row, strict=True)) for n, row in zip(sorted(experts.routing), rows, strict=True)}


@torch.no_grad()
def count_routes(trace: Trace, is_real: Tensor, experts: ExpertMap, kept: dict[int, Tensor]) -> RoutingCounts:
    """Of one pass. `is_real` bool [R]; `kept` bool [R, K] of each layer that drops."""
    layers = sorted(trace.experts)
    if not layers:
        none = torch.zeros(0, dtype=torch.int64, device=is_real.device)
        return RoutingCounts(none.view(0, experts.num_experts), none, none, none, is_real.sum())
    loads, touched, dropped = [], [], []
    for layer in layers:
        chosen = trace.experts[layer]
        loads.append(_loads(chosen, is_real, experts.num_experts))
        touched.append(touched_devices(chosen, experts).sum(1) * is_real)
        dropped.append(
            (~kept[layer] & is_real[:, None]).sum() if layer in kept else is_real.new_zeros((), dtype=torch.int64)
        )
    rows_touched = torch.stack(touched)
    return RoutingCounts(
        torch.stack(loads), rows_touched.sum(1), rows_touched.amax(1), torch.stack(dropped), is_real.sum()
    )


def _loads(chosen: Tensor, is_real: Tensor, num_experts: int) -> Tensor:
    counts = is_real.to(torch.int64)[:, None].expand_as(chosen).reshape(-1)
    loads = torch.zeros(num_experts, dtype=torch.int64, device=chosen.device)
    return loads.scatter_add_(0, chosen.reshape(-1), counts)
