"""Load balance by a bias on each expert's selection score, as in V3 and V4 (model.md 2.8).

    b_e <- b_e + rate * sign(mean load - load_e)

An expert that got more than its share becomes a little less eligible. The bias takes no part in the gate weights, so
no gradient is touched. In RL it stands still (`update_bias = false`): the gate is part of the policy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benthic.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceConfig:
    """What keeps the load of experts even. Gates with a correction bias take the bias and the sequence loss, gates by
    score alone the three losses of V2; the weights are the published ones, and 0 leaves a loss out."""

    update_bias: bool = True
    """Move the correction bias; false freezes it, as RL wants."""
    rate: float = 0.001
    """Step of the bias."""
    late_rate: float = 0.0
    """Step of the bias in the last part of the run."""
    late_share: float = 0.03
    """Share of all steps, at the end, that count as late."""
    sequence_weight: float = 0.0001
    """Weight of the sequence-wise loss of V3 and V4."""
    expert_weight: float = 0.003
    """Weight of V2's expert-level loss."""
    device_weight: float = 0.05
    """Weight of V2's device-level loss."""
    communication_weight: float = 0.02
    """Weight of V2's communication loss."""
    num_devices: int = 0
    """Devices that the experts count as spread over, in equal runs; 0: one for each group of the gate."""

    def __post_init__(self) -> None:
        for name in ("rate", "late_rate", "sequence_weight", "expert_weight", "device_weight", "communication_weight"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ConfigError(f"balance.{name} ({value}) must be finite and not negative")
        if not 0 <= self.late_share <= 1:
            raise ConfigError(f"balance.late_share ({self.late_share}) must lie between 0 and 1")
        if self.num_devices < 0:
            raise ConfigError(f"balance.num_devices ({self.num_devices}) must be at least 0")


def bias_rate(config: BalanceConfig, step: int, total_steps: int) -> float:
    """Step of the bias in step `step` (from 0) of a run."""
    if not config.update_bias:
        return 0.0
    return config.late_rate if step >= (1 - config.late_share) * total_steps else config.rate


@torch.no_grad()
def update_biases(biases: Sequence[Tensor], loads: Sequence[Tensor], rate: Tensor) -> None:
    """Moves each router's correction bias in place.

    Args:
        biases: fp32 [E] of each router that chooses by score.
        loads: rows sent to each expert, [E] of any dtype, in the same order.
        rate: step of the bias, scalar tensor on the same device (a tensor, so that a captured step can change it).
    """
    assert len(biases) == len(loads)
    for bias, load in zip(biases, loads, strict=True):
        load = load.to(bias.dtype)
        bias.add_(torch.sign(load.mean() - load) * rate)
