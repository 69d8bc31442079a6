"""Router scores to experts and their weights."""

from benthic.kernels.moe_route.op import GroupLimit, Routing, Score, moe_route, router_scores

__all__ = ["GroupLimit", "Routing", "Score", "moe_route", "router_scores"]
