"""Time floors: what a pass takes at least on a machine's ceilings, and whether experts' exchange hides behind products.

A floor is the largest of three times, each as if the others cost nothing: products at the device's rate, bytes at its
bandwidth, exchange at its link. Kernels, launches, softmax and the host come on top: a floor is no prediction.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from benthic.models.config import ModelConfig
from benthic.plan.costs import Costs, product_format
from benthic.plan.fit import Fit, device_bytes
from benthic.plan.hardware import Format, Machine, Source
from benthic.plan.lookups import Work
from benthic.plan.state import PASS_ROWS
from benthic.plan.weights import Holding, touched_share

COMBINE_BYTES = 2
"""Bytes of a number that comes back from an expert: bf16."""


@dataclass(frozen=True, slots=True)
class Step:
    """One pass of `rows` tokens over a machine: seconds of each kind on the busiest device.

    `conversations` are in it; a decode pass has a row of each, or more where drafts are verified.
    """

    rows: float
    conversations: float
    products_s: float
    weights_s: float
    state_s: float
    exchange_s: float

    @property
    def memory_s(self) -> float:
        """Bytes from memory: weights and state share the bandwidth."""
        return self.weights_s + self.state_s

    @property
    def floor_s(self) -> float:
        """The pass takes no less."""
        return max(self.products_s, self.memory_s, self.exchange_s)

    @property
    def bound(self) -> str:
        """What that is."""
        times = {
            "products": self.products_s,
            "bytes of weights" if self.weights_s >= self.state_s else "bytes of state": self.memory_s,
            "exchange between devices": self.exchange_s,
        }
        return max(times, key=lambda name: times[name])


@dataclass(frozen=True, slots=True)
class Balance:
    """C/B <= 2d: experts' exchange hides behind their products (an EP group on one node).

    `compute_per_byte` is C/B, the device's rate over its link; `limit` what the model has to offer: a token-expert pair
    takes 6hd operations and moves h numbers there and h back. `hidden_share` is the share of the rate up to which the
    exchange hides.
    """

    compute_per_byte: float
    limit: float

    @property
    def hidden_share(self) -> float:
        """1: all hides, even at full rate."""
        return min(1.0, self.limit / self.compute_per_byte)


@dataclass(frozen=True, slots=True)
class Floors:
    """A model that is shared over a machine in one way."""

    config: ModelConfig
    costs: Costs
    held: tuple[Holding, ...]
    fit: Fit
    machine: Machine
    source: Source

    def decode(self, conversations: int, context: int, *, num_drafts: int = 0) -> Step:
        """A pass in which each conversation gets a token; with drafts, as many rows more, and the MTP block's."""
        rows, drafts = conversations * (1 + num_drafts), conversations * num_drafts
        works = [*_times(self.costs.decode(context), rows), *_times(self.costs.draft(context), drafts)]
        state = conversations * self.costs.read_bytes(context)
        state += drafts * sum(one.read_bytes(context) for one in self.costs.draft_lookups)
        return self._step(works, rows, conversations, state, with_mtp=num_drafts > 0)

    def prefill(self, context: int) -> Step:
        """A chunk of a prompt of `context` tokens on every group (EP: on every device), of average position."""
        fit = self.fit
        chunks = fit.num_groups * (fit.num_devices if fit.layout == "EP" else 1)
        rows = chunks * min(PASS_ROWS, context)
        # Rows of a chunk share what they read: once a chunk, what its mean position has behind it.
        state = chunks * self.costs.token_bytes * (context + 1) / 2
        return self._step(_times(self.costs.prefill(context), rows), rows, chunks, state)

    def balance(self) -> Balance:
        """Of an EP group's experts, in the format in which their products run."""
        form = self._expert_format()
        rate, link = self.machine.ceilings(self.source).rate(form), self.machine.link(self.fit.num_devices, self.source)
        return Balance(rate / link, 6 * self.config.moe_intermediate_size / (_sent_bytes(form) + COMBINE_BYTES))

    def _step(
        self, works: Iterable[Work], rows: int, conversations: int, state: float, *, with_mtp: bool = False
    ) -> Step:
        fit, ceilings = self.fit, self.machine.ceilings(self.source)
        is_tp = fit.layout == "TP"
        share = 1 / fit.num_groups if is_tp else 1 / (fit.num_groups * fit.num_devices)
        products = sum(
            work.flops * share / (fit.num_devices if is_tp and work.split != "whole" else 1) / ceilings.rate(work.form)
            for work in works
        )
        return Step(
            rows=rows,
            conversations=conversations,
            products_s=products,
            weights_s=self._weight_bytes(rows / fit.num_groups, with_mtp=with_mtp) / ceilings.bandwidth,
            state_s=state * share / ceilings.bandwidth,
            exchange_s=self._exchange_bytes(rows / fit.num_groups) / self.machine.link(fit.num_devices, self.source),
        )

    def _weight_bytes(self, group_rows: float, *, with_mtp: bool) -> float:
        """That one device reads in a pass: all it holds, of its experts those that are reached."""
        touched = touched_share(self.config, group_rows)
        return sum(
            device_bytes(item, self.fit.layout, self.fit.num_devices) * (touched if item.split == "expert" else 1)
            for item in self.held
            if item.part != "embedding" and (with_mtp or item.part != "MTP")
        )

    def _exchange_bytes(self, group_rows: float) -> float:
        """That one device sends in a pass. EP: rows to experts, results back; TP: two sums over devices a layer."""
        size, dim = self.fit.num_devices, self.config.hidden_size
        beyond = (size - 1) / size
        if self.fit.layout == "TP":
            return 2 * beyond * group_rows * dim * COMBINE_BYTES * 2 * self.config.num_hidden_layers
        layers = sum(spec.mlp == "experts" for spec in self.config.layers)
        pair_bytes = dim * (_sent_bytes(self._expert_format()) + COMBINE_BYTES)
        return group_rows / size * self.config.num_experts_per_tok * beyond * pair_bytes * layers

    def _expert_format(self) -> Format:
        return next(product_format(item) for item in self.held if item.part == "routed experts")


def _times(works: Iterable[Work], count: float) -> list[Work]:
    return [Work(work.part, work.flops * count, work.form, work.split) for work in works]


def _sent_bytes(form: Format) -> int:
    """Bytes of a number on its way to an expert."""
    return 1 if form in ("fp4", "fp8") else 2
