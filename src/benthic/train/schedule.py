"""The learning rate over a run: warm-up, a flat part, a decay."""

import math
from dataclasses import dataclass
from typing import Literal

from benthic.errors import ConfigError

Decay = Literal["linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Shape of the learning rate."""

    peak: float = 3e-3
    """Learning rate of the flat part, of both optimisers."""
    final: float = 0.0
    """Learning rate that the decay ends at."""
    warmup_steps: int = 60
    """Steps over which the rate rises from near 0 to the peak."""
    flat_share: float = 0.4
    """Share of all steps, warm-up included, before the decay begins."""
    decay: Decay = "linear"
    """Form of the decay: linear or cosine."""

    def __post_init__(self) -> None:
        if not 0 <= self.final <= self.peak:
            raise ConfigError(f"schedule.final ({self.final}) must lie between 0 and schedule.peak ({self.peak})")
        if self.warmup_steps < 0:
            raise ConfigError(f"schedule.warmup_steps ({self.warmup_steps}) must be at least 0")
        if not 0 <= self.flat_share <= 1:
            raise ConfigError(f"schedule.flat_share ({self.flat_share}) must lie between 0 and 1")
        if self.decay not in ("linear", "cosine"):
            raise ConfigError(f'schedule.decay ("{self.decay}") must be "linear" or "cosine"')


def learning_rate(config: ScheduleConfig, step: int, total_steps: int) -> float:
    """Learning rate of step `step` (from 0) in a run of `total_steps`.

    The warm-up ends at the peak with step `warmup_steps - 1`; the last step of all is one step short of `final`,
    so that a decay to zero wastes no step.
    """
    assert 0 <= step < total_steps
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    decay_start = config.flat_share * total_steps
    if step < decay_start:
        return config.peak * warm
    progress = (step - decay_start) / (total_steps - decay_start)
    left = 1 - progress if config.decay == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return warm * (config.final + (config.peak - config.final) * left)
