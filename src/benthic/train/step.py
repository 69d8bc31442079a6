"""One optimiser step, without a word from the device to the host.

    zero gradients -> for each batch: forward, losses, backward -> clip -> optimisers -> router biases

What changes from step to step (learning rate, bias rate) lives in tensors on the device, and gradients keep their
storage, so that the same calls can be captured and replayed.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from benthic.models.packed import PackedContext
from benthic.models.trace import Trace
from benthic.models.transformer import Transformer
from benthic.train.balance import update_biases
from benthic.train.config import TrainConfig
from benthic.train.feed import DeviceBatch
from benthic.train.hybrid import HybridOptimiser, clip_gradients
from benthic.train.losses import batch_losses
from benthic.train.rounding import WeightRounding, official_formats

METRICS = ("next_token", "mtp", "index", "grad_norm", "max_load")
"""Names of the values that a step returns; `max_load` is the busiest expert's load over the mean, in any layer."""


class TrainStep:
    """Owns the optimisers and moves a model's weights. The model is on its device, its weights are fp32."""

    def __init__(self, model: Transformer, config: TrainConfig) -> None:
        self.model = model
        self._config = config
        named = dict(model.named_parameters())
        self._parameters = list(named.values())
        on_cuda = model.device.type == "cuda"
        self.optimiser = HybridOptimiser(
            named.items(), model.config, config.muon, config.adamw, torch.bfloat16 if on_cuda else None
        )
        self.rounding = WeightRounding(named, official_formats(model.config, named))
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._gradients = [p.grad for p in self._parameters if p.grad is not None]
        self._learning_rate = torch.zeros((), device=model.device)
        self._balance_rate = torch.zeros((), device=model.device)
        self._routers = _biased_routers(model)

    def __call__(
        self,
        batches: Sequence[DeviceBatch],
        *,
        learning_rate: float,
        balance_rate: float,
        dense_selection: bool,
        rounded: bool,
    ) -> Tensor:
        """One step over the batches; returns the values of `METRICS`, fp32 on the device."""
        self.set_rates(learning_rate, balance_rate)
        return self.compute(batches, dense_selection, rounded)

    def set_rates(self, learning_rate: float, balance_rate: float) -> None:
        """Tells the device what the next `compute` uses."""
        self._learning_rate.fill_(learning_rate)
        self._balance_rate.fill_(balance_rate)

    def compute(self, batches: Sequence[DeviceBatch], dense_selection: bool, rounded: bool) -> Tensor:
        """The step itself: a sequence of device operations that depends on the shapes of the batches alone."""
        torch._foreach_zero_(self._gradients)
        with self.rounding.applied() if rounded else nullcontext():
            parts, loads = self._accumulate(batches, dense_selection)
        norm = clip_gradients(self._parameters, self._config.clip_norm)
        self.optimiser.step(self._learning_rate)
        biases, layers = [bias for _, bias in self._routers], [layer for layer, _ in self._routers]
        update_biases(biases, [loads[layer] for layer in layers], self._balance_rate)
        busiest = torch.stack([load.amax() / load.to(torch.float32).mean() for load in loads.values()]).amax()
        return torch.cat([parts, torch.stack([norm, busiest])])

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, by name, as the live tensors."""
        tensors = {f"model.{name}": parameter.data for name, parameter in self.model.named_parameters()}
        tensors |= {f"model.{name}": buffer for name, buffer in self.model.named_buffers()}
        return tensors | self.optimiser.state()

    def _accumulate(self, batches: Sequence[DeviceBatch], dense_selection: bool) -> tuple[Tensor, dict[int, Tensor]]:
        """Adds the gradients of all batches; returns the detached parts of the loss and each layer's loads [E]."""
        weight_sums = torch.stack([batch.weight_sums for batch in batches]).sum(0).clamp(min=1e-6)
        experts = self.model.config.n_routed_experts
        parts = torch.zeros(3, device=self.model.device)
        loads: dict[int, Tensor] = {}
        for batch in batches:
            trace = Trace(wants_index_loss=self._config.loss.index_weight > 0, dense_selection=dense_selection)
            context = PackedContext(self.model.config, batch.rows, batch.plan)
            losses = batch_losses(self.model, batch, context, weight_sums, self._config.loss, trace, 1 / len(batches))
            losses.total.backward()
            parts += torch.stack([losses.next_token, losses.mtp, losses.index])
            for layer, chosen in trace.experts.items():
                load = _loads(chosen, batch.is_real, experts)
                loads[layer] = loads[layer] + load if layer in loads else load
        return parts, loads


def _loads(chosen: Tensor, is_real: Tensor, num_experts: int) -> Tensor:
    """Real rows sent to each expert, int64 [E]; integer sums are exact in any order."""
    counts = is_real.to(torch.int64)[:, None].expand_as(chosen).reshape(-1)
    loads = torch.zeros(num_experts, dtype=torch.int64, device=chosen.device)
    return loads.scatter_add_(0, chosen.reshape(-1), counts)


def _biased_routers(model: Transformer) -> list[tuple[int, Tensor]]:
    """Layer number (main layers, then MTP blocks) and correction bias of each router that has one."""
    blocks = [*model.layers, *model.mtp]
    found = []
    for layer, block in enumerate(blocks):
        bias = dict(block.named_buffers()).get("ffn.gate.bias")
        if bias is not None:
            found.append((layer, bias))
    return found
