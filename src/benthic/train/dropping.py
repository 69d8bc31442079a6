"""Token dropping (V2 report 2.1.4): a device that is sent more than its share leaves out what it weighs least.

Every device has room for `capacity_factor` times the mean number of picks. Of those beyond, the ones with the lowest
score are dropped: they get the weight 0, as if the expert had not been chosen, and the gate weights of the row's other
experts stay. Some sequences are never dropped from, so that the model also knows passes without dropping, as evaluation
and serving are. With dropping a row depends on its batch: the price is paid in training only.
"""

import math
import zlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benthic.errors import ConfigError
from benthic.kernels.moe_route import Routing, router_scores
from benthic.train.expert_map import ExpertMap
from benthic.train.packing import TrainBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppingConfig:
    """V2's token dropping; V3 and V4 train without."""

    enabled: bool = False
    """Drop what is beyond a device's room."""
    capacity_factor: float = 1.0
    """Room of a device, over the mean load of devices."""
    spared_share: float = 0.1
    """Share of sequences, chosen by their tokens, that are never dropped from."""

    def __post_init__(self) -> None:
        if not 0 < self.capacity_factor < math.inf:
            raise ConfigError(f"dropping.capacity_factor ({self.capacity_factor}) must be finite and positive")
        if not 0 <= self.spared_share <= 1:
            raise ConfigError(f"dropping.spared_share ({self.spared_share}) must lie between 0 and 1")


def spared_rows(batch: TrainBatch, share: float) -> NDArray[np.bool_]:
    """Rows of the sequences that are never dropped from, bool [R]: a function of a sequence's own tokens."""
    threshold = share * 2**32
    spans = zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True)
    spared = [zlib.crc32(batch.token_ids[start : start + n].tobytes()) < threshold for start, n in spans]
    return np.repeat(np.array(spared, np.bool_), batch.lengths)


class TokenDropping:
    """Says for one batch which picks of an expert count; a `Trace.keep`.

    Args:
        is_real: bool [R], False for fillers: they take no room and are left out.
        is_spared: bool [R], rows that are never dropped; they take room before all others, and beyond it.
    """

    def __init__(self, experts: ExpertMap, config: DroppingConfig, is_real: Tensor, is_spared: Tensor) -> None:
        self._experts, self._config = experts, config
        self._is_real, self._is_spared = is_real, is_spared
        self.kept: dict[int, Tensor] = {}

    @torch.no_grad()
    def __call__(self, layer: int, logits: Tensor, routing: Routing) -> Tensor:
        """Which of a layer's picks count, bool [R, K]; kept by layer in `kept`."""
        chosen, num_devices = routing.experts, self._experts.num_devices
        is_real, is_spared = (
            flags[:, None].expand_as(chosen).reshape(-1) for flags in (self._is_real, self._is_spared)
        )
        device = torch.where(is_real, self._experts.device_of(chosen).reshape(-1), num_devices)
        affinity = router_scores(logits, self._experts.score).gather(1, chosen).reshape(-1)
        # Stable sorts from the least to the most significant key; ties fall to the earlier row.
        order = torch.sort(affinity, descending=True, stable=True).indices
        order = order[torch.sort(is_spared[order].to(torch.int8), descending=True, stable=True).indices]
        order = order[torch.sort(device[order], stable=True).indices]
        counts = torch.zeros(num_devices + 1, dtype=torch.int64, device=device.device)
        counts.scatter_add_(0, device, torch.ones_like(device))
        first = counts.cumsum(0) - counts
        place = torch.arange(len(order), device=device.device) - first[device[order]]
        rank = torch.empty_like(place).scatter_(0, order, place)
        room = (is_real.sum() * self._config.capacity_factor / num_devices).floor()
        keep = (((rank < room) | is_spared) & is_real).view_as(chosen)
        self.kept[layer] = keep
        return keep
