"""Muon: momentum, orthogonalised by hybrid Newton-Schulz (training.md 2.1).

    M <- mu M + G                       X = mu M + G            (Nesterov look-ahead)
    O = NewtonSchulz(X) sqrt(max(n, m)) gamma
    W <- W (1 - lr wd) - lr O

A semi-orthogonal n x m matrix has entries of root mean square 1/sqrt(max(n, m)), so the update's is gamma, close to
AdamW's, and both share one learning rate. Independent matrices (each expert's gate, up and down, each output group)
are orthogonalised apart; those of equal shape in one batched call.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benthic.errors import ConfigError
from benthic.kernels.newton_schulz import newton_schulz

Matrices = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MuonConfig:
    """Constants of Muon (paper 2.4)."""

    momentum: float = 0.95
    """Decay of the momentum, and weight of the look-ahead."""
    update_rms: float = 0.18
    """Root mean square of an update at learning rate 1."""
    weight_decay: float = 0.1
    """Decoupled decay, times the learning rate."""

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"muon.momentum ({self.momentum}) must be at least 0 and below 1")
        if self.update_rms <= 0 or self.weight_decay < 0:
            raise ConfigError(
                f"muon.update_rms ({self.update_rms}) must be positive, muon.weight_decay ({self.weight_decay}) >= 0"
            )


@dataclass(frozen=True, slots=True)
class _Group:
    """All matrices of one shape [n, m]: their parameters and one momentum, fp32 [matrices, n, m]."""

    names: list[str]
    parameters: list[nn.Parameter]
    counts: list[int]
    momentum: Tensor
    scale: float


class Muon:
    """Moves fp32 parameters in place. `matrices[i]` is (count, n, m): parameter i as independent matrices."""

    def __init__(
        self,
        names: Sequence[str],
        parameters: Sequence[nn.Parameter],
        matrices: Sequence[Matrices],
        config: MuonConfig,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        assert len(names) == len(parameters) == len(matrices)
        self._config = config
        self._compute_dtype = compute_dtype
        by_shape: dict[tuple[int, int], list[int]] = {}
        for index, (_, n, m) in enumerate(matrices):
            by_shape.setdefault((n, m), []).append(index)
        self._groups = []
        for (n, m), members in by_shape.items():
            counts = [matrices[i][0] for i in members]
            momentum = torch.zeros(sum(counts), n, m, dtype=torch.float32, device=parameters[members[0]].device)
            scale = config.update_rms * math.sqrt(max(n, m))
            self._groups.append(
                _Group([names[i] for i in members], [parameters[i] for i in members], counts, momentum, scale)
            )

    @torch.no_grad()
    def step(self, learning_rate: Tensor) -> None:
        """One update from the gradients that the parameters carry; `learning_rate` is an fp32 scalar tensor."""
        keep = 1 - learning_rate * self._config.weight_decay
        for group in self._groups:
            weights = [p.data for p in group.parameters]
            updates = self._orthogonal(group) * (learning_rate * group.scale)
            torch._foreach_mul_(weights, keep)
            parts = updates.split(group.counts)
            torch._foreach_sub_(weights, [u.reshape(w.shape) for u, w in zip(parts, weights, strict=True)])

    def state(self) -> dict[str, Tensor]:
        """The momentum of each parameter by name, as views of the optimiser's own tensors."""
        return {
            f"muon.{name}": part
            for group in self._groups
            for name, part in zip(group.names, group.momentum.split(group.counts), strict=True)
        }

    def _orthogonal(self, group: _Group) -> Tensor:
        shape = group.momentum.shape[1:]
        for name, parameter in zip(group.names, group.parameters, strict=True):
            assert parameter.grad is not None, f"{name} has no gradient: it took no part in the loss"
        gradient = torch.cat([p.grad.reshape(-1, *shape) for p in group.parameters if p.grad is not None])
        group.momentum.mul_(self._config.momentum).add_(gradient)
        look_ahead = gradient.add_(group.momentum, alpha=self._config.momentum)
        return newton_schulz(look_ahead, compute_dtype=self._compute_dtype).to(torch.float32)
