"""What a forward pass leaves behind besides its result, for those who ask."""

from dataclasses import dataclass, field

from torch import Tensor


@dataclass(slots=True)
class Trace:
    """Pass one to `Transformer.forward` to collect; layers count main layers, then MTP blocks.

    `experts[layer]` int64 [num_rows, K]: routed experts of the real rows.
    `picks[layer]` int32 [num_rows, k], when `wants_picks`: the entries that each real row of a CSA layer attends to,
    ascending, -1 where there are fewer than the indexer's top-k; all visible ones where it need not choose.
    `index_losses[layer]`: scalar KL of the indexer against attention, one for each CSA layer, when
    `wants_index_loss`; the indexer learns from it alone, since selection has no gradient.
    `dense_selection`: attend all visible entries instead of the indexer's choice (the indexer's warm-up).
    `replay[layer]` int64 [num_rows, K]: routes to take instead of the router's own.
    """

    wants_index_loss: bool = False
    dense_selection: bool = False
    wants_picks: bool = False
    experts: dict[int, Tensor] = field(default_factory=dict)
    picks: dict[int, Tensor] = field(default_factory=dict)
    index_losses: dict[int, Tensor] = field(default_factory=dict)
    replay: dict[int, Tensor] = field(default_factory=dict)
