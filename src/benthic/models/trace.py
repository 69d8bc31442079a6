"""What a forward pass leaves behind besides its result, for those who ask."""

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from benthic.kernels.moe_route import Routing

Keep = Callable[[int, Tensor, Routing], Tensor]


@dataclass(slots=True)
class Trace:
    """Pass one to `Transformer.forward` to collect; layers count main layers, then MTP blocks.

    `experts[layer]` int64 [num_rows, K]: routed experts of the real rows, of layers that have any.
    `router_logits[layer]` fp32 [num_rows, E], when `wants_router_logits`: with gradient, for balance losses.
    `picks[layer]` int32 [num_rows, k], when `wants_picks`: the entries that each real row of a CSA layer attends to,
    ascending, -1 where there are fewer than the indexer's top-k; all visible ones where it need not choose.
    `index_losses[layer]`: scalar KL of the indexer against attention, one for each CSA layer, when
    `wants_index_loss`; the indexer learns from it alone, since selection has no gradient.
    `dense_selection`: attend all visible entries instead of the indexer's choice (the indexer's warm-up).
    `replay[layer]` int64 [num_rows, K]: routes to take instead of the router's own.
    `keep(layer, logits, routing)` bool [num_rows, K], when given: which picks of an expert count; the others get the
    weight 0. For training with token dropping: it makes a row depend on the rest of its batch.
    """

    wants_index_loss: bool = False
    dense_selection: bool = False
    wants_picks: bool = False
    wants_router_logits: bool = False
    keep: Keep | None = None
    experts: dict[int, Tensor] = field(default_factory=dict)
    router_logits: dict[int, Tensor] = field(default_factory=dict)
    picks: dict[int, Tensor] = field(default_factory=dict)
    index_losses: dict[int, Tensor] = field(default_factory=dict)
    replay: dict[int, Tensor] = field(default_factory=dict)

    def routed(self, layer: int, logits: Tensor, routing: Routing) -> Routing:
        """Takes note of where a layer's rows go; returns where they go after dropping."""
        self.experts[layer] = routing.experts
        if self.wants_router_logits:
            self.router_logits[layer] = logits
        if self.keep is None:
            return routing
        return routing._replace(weights=routing.weights * self.keep(layer, logits, routing))
