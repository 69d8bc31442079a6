"""Router scores to experts and their weights, and the rows of every expert."""

from benthic.kernels.moe_route.op import GroupLimit, Routing, Score, moe_route, router_scores
from benthic.kernels.moe_route.rows import ExpertRows
from benthic.kernels.moe_route.serving import route_rows

__all__ = ["ExpertRows", "GroupLimit", "Routing", "Score", "moe_route", "route_rows", "router_scores"]
