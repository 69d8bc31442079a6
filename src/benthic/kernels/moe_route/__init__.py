"""Router scores to experts and their weights."""

from benthic.kernels.moe_route.op import Routing, Score, moe_route

__all__ = ["Routing", "Score", "moe_route"]
