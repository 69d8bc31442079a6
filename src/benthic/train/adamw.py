"""AdamW for the parameters that are not matrices, with the paper's tiny epsilon.

    m <- beta1 m + (1 - beta1) g        v <- beta2 v + (1 - beta2) g^2
    w <- w (1 - lr wd) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

The step count and the learning rate live on the device, so that a step can be captured and replayed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benthic.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamWConfig:
    """Constants of AdamW (paper 4.2.2)."""

    beta1: float = 0.9
    """Decay of the mean of gradients."""
    beta2: float = 0.95
    """Decay of the mean of squared gradients."""
    eps: float = 1e-20
    """Added to the root of the second moment."""
    weight_decay: float = 0.1
    """Decoupled decay, times the learning rate."""

    def __post_init__(self) -> None:
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ConfigError(f"adamw.{name} ({value}) must be at least 0 and below 1")
        if self.eps <= 0 or self.weight_decay < 0:
            raise ConfigError(f"adamw.eps ({self.eps}) must be positive, adamw.weight_decay ({self.weight_decay}) >= 0")


class AdamW:
    """Moves fp32 parameters in place; `decay[i]` says whether parameter i decays. State is fp32, keyed by name."""

    def __init__(
        self, names: Sequence[str], parameters: Sequence[nn.Parameter], decay: Sequence[bool], config: AdamWConfig
    ) -> None:
        assert len(names) == len(parameters) == len(decay)
        self._config = config
        self._names = list(names)
        self._parameters: list[Tensor] = [p.data for p in parameters]
        self._owners = list(parameters)
        self._decaying = [p.data for p, decays in zip(parameters, decay, strict=True) if decays]
        self._mean = [torch.zeros_like(p) for p in self._parameters]
        self._square = [torch.zeros_like(p) for p in self._parameters]
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        # beta^t for both betas, fp64: 0.95^t would drift in fp32 over a long run
        self._powers = torch.ones(2, dtype=torch.float64, device=device)
        self._betas = torch.tensor([config.beta1, config.beta2], dtype=torch.float64, device=device)

    @torch.no_grad()
    def step(self, learning_rate: Tensor) -> None:
        """One update from the gradients that the parameters carry; `learning_rate` is an fp32 scalar tensor."""
        if not self._parameters:
            return
        config = self._config
        gradients = [_gradient(name, p) for name, p in zip(self._names, self._owners, strict=True)]
        self._powers.mul_(self._betas)
        torch._foreach_lerp_(self._mean, gradients, 1 - config.beta1)
        torch._foreach_mul_(self._square, config.beta2)
        torch._foreach_addcmul_(self._square, gradients, gradients, 1 - config.beta2)
        corrections = (1 - self._powers).to(torch.float32)
        divisors = torch._foreach_div(self._square, corrections[1])
        torch._foreach_sqrt_(divisors)
        torch._foreach_add_(divisors, config.eps)
        updates = torch._foreach_div(self._mean, divisors)
        torch._foreach_mul_(updates, learning_rate / corrections[0])
        if self._decaying:
            torch._foreach_mul_(self._decaying, 1 - learning_rate * config.weight_decay)
        torch._foreach_sub_(self._parameters, updates)

    def state(self) -> dict[str, Tensor]:
        """The state by name; the tensors are the optimiser's own, so copying into them restores it."""
        tensors = {"adamw.powers": self._powers}
        for name, mean, square in zip(self._names, self._mean, self._square, strict=True):
            tensors[f"adamw.mean.{name}"] = mean
            tensors[f"adamw.square.{name}"] = square
        return tensors


def _gradient(name: str, parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None, f"{name} has no gradient: it took no part in the loss"
    return parameter.grad
