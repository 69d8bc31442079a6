"""One optimiser step, without a word from the device to the host.

    zero gradients -> for each batch: forward, losses, backward -> clip -> optimisers -> router biases

What changes from step to step (learning rate, bias rate) lives in tensors on the device, and gradients keep their
storage, so that the same calls can be captured and replayed.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from benthic.models.packed import PackedContext
from benthic.models.trace import Trace
from benthic.models.transformer import Transformer
from benthic.train.balance import update_biases
from benthic.train.balance_losses import balance_losses, wants_losses
from benthic.train.config import TrainConfig
from benthic.train.dropping import TokenDropping
from benthic.train.expert_map import map_experts
from benthic.train.feed import DeviceBatch
from benthic.train.hybrid import HybridOptimiser, clip_gradients
from benthic.train.losses import batch_losses
from benthic.train.rounding import WeightRounding, official_formats
from benthic.train.routing_counts import RoutingCounts, count_routes

METRICS = ("next_token", "mtp", "index", "balance", "grad_norm", "max_load", "devices", "most_devices", "dropped")
"""Names of the values that a step returns. `balance` is weighted; `max_load` is the busiest expert's load over the
mean, in any layer; `devices` and `most_devices` are how many devices a row touches, on average and at most; `dropped`
is the share of picks that token dropping left out."""


class StepValues(NamedTuple):
    """What a step leaves on the device: the values of `METRICS`, fp32, and where rows went."""

    metrics: Tensor
    counts: RoutingCounts


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
        self.experts = map_experts(model.config, config.balance.num_devices)
        self._balances = wants_losses(self.experts, config.balance)

    def __call__(
        self,
        batches: Sequence[DeviceBatch],
        *,
        learning_rate: float,
        balance_rate: float,
        dense_selection: bool,
        rounded: bool,
    ) -> StepValues:
        """One step over the batches."""
        self.set_rates(learning_rate, balance_rate)
        return self.compute(batches, dense_selection, rounded)

    def set_rates(self, learning_rate: float, balance_rate: float) -> None:
        """Tells the device what the next `compute` uses."""
        self._learning_rate.fill_(learning_rate)
        self._balance_rate.fill_(balance_rate)

    def compute(self, batches: Sequence[DeviceBatch], dense_selection: bool, rounded: bool) -> StepValues:
        """The step itself: a sequence of device operations that depends on the shapes of the batches alone."""
        torch._foreach_zero_(self._gradients)
        with self.rounding.applied() if rounded else nullcontext():
            parts, counts = self._accumulate(batches, dense_selection)
        norm = clip_gradients(self._parameters, self._config.clip_norm)
        self.optimiser.step(self._learning_rate)
        loads = dict(zip(sorted(self.experts.routing), counts.loads, strict=True))
        update_biases([bias for _, bias in self._routers], [loads[n] for n, _ in self._routers], self._balance_rate)
        return StepValues(torch.cat([parts, norm[None], counts.summary()]), counts)

    def state(self) -> dict[str, Tensor]:
        """Everything that the next step depends on, by name, as the live tensors."""
        tensors = {f"model.{name}": parameter.data for name, parameter in self.model.named_parameters()}
        tensors |= {f"model.{name}": buffer for name, buffer in self.model.named_buffers()}
        return tensors | self.optimiser.state()

    def _accumulate(self, batches: Sequence[DeviceBatch], dense_selection: bool) -> tuple[Tensor, RoutingCounts]:
        """Adds the gradients of all batches; returns the detached parts of the loss and where rows went."""
        weight_sums = torch.stack([batch.weight_sums for batch in batches]).sum(0).clamp(min=1e-6)
        num_tokens = torch.stack([batch.sequences.is_real.sum() for batch in batches]).sum().clamp(min=1)
        parts = torch.zeros(4, device=self.model.device)
        all_counts: RoutingCounts | None = None
        for batch in batches:
            dropping = self._dropping(batch)
            trace = Trace(
                wants_index_loss=self._config.loss.index_weight > 0,
                dense_selection=dense_selection,
                wants_router_logits=self._balances,
                keep=dropping,
            )
            form = self._config.latent_form
            context = PackedContext(self.model.config, batch.rows, batch.plan, latent_form=form)
            losses = batch_losses(self.model, batch, context, weight_sums, self._config.loss, trace, 1 / len(batches))
            balance = balance_losses(trace, batch.sequences, self.experts, num_tokens).weighted(self._config.balance)
            (losses.total + balance).backward()
            parts += torch.stack([losses.next_token, losses.mtp, losses.index, balance.detach()])
            kept = dropping.kept if dropping is not None else {}
            counts = count_routes(trace, batch.sequences.is_real, self.experts, kept)
            all_counts = counts if all_counts is None else all_counts.plus(counts)
        assert all_counts is not None, "a step takes at least one batch"
        return parts, all_counts

    def _dropping(self, batch: DeviceBatch) -> TokenDropping | None:
        config = self._config.dropping
        if not config.enabled:
            return None
        return TokenDropping(self.experts, config, batch.sequences.is_real, batch.is_spared)


def _biased_routers(model: Transformer) -> list[tuple[int, Tensor]]:
    """Layer number (main layers, then MTP blocks) and correction bias of each router that has one."""
    blocks = [*model.layers, *model.mtp]
    found = []
    for layer, block in enumerate(blocks):
        bias = dict(block.named_buffers()).get("ffn.gate.bias")
        if bias is not None:
            found.append((layer, bias))
    return found
