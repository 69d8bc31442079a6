"""The two optimisers as one: every parameter of a model moved by the one its place in `split` names."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from benthic.models.config import ModelConfig
from benthic.train.adamw import AdamW, AdamWConfig
from benthic.train.muon import Muon, MuonConfig
from benthic.train.split import Placement, split_parameters


class HybridOptimiser:
    """Muon for matrices and AdamW for the rest. `table` says where each parameter went; state is keyed by name."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        config: ModelConfig,
        muon: MuonConfig,
        adamw: AdamWConfig,
        compute_dtype: torch.dtype | None = None,
    ) -> None:
        named = dict(named_parameters)
        self.table: tuple[Placement, ...] = split_parameters(named.items(), config)
        matrices = [(p, p.matrices) for p in self.table if p.matrices is not None]
        others = [p for p in self.table if p.matrices is None]
        self._muon = Muon(
            [p.name for p, _ in matrices],
            [named[p.name] for p, _ in matrices],
            [view for _, view in matrices],
            muon,
            compute_dtype,
        )
        self._adamw = AdamW([p.name for p in others], [named[p.name] for p in others], [p.decay for p in others], adamw)

    def step(self, learning_rate: Tensor) -> None:
        """One update of all parameters; `learning_rate` is an fp32 scalar tensor on their device."""
        self._muon.step(learning_rate)
        self._adamw.step(learning_rate)

    def state(self) -> dict[str, Tensor]:
        """All state by name, as the optimisers' own tensors: copy into them to restore."""
        return self._muon.state() | self._adamw.state()


@torch.no_grad()
def clip_gradients(parameters: Sequence[nn.Parameter], max_norm: float) -> Tensor:
    """Scales all gradients in place so that their joint norm is at most `max_norm`; returns the norm before, fp32.

    No value is read back to the host.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm
