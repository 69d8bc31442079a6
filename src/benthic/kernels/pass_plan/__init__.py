"""Where everything of a pass of single rows lies, computed where the pass runs."""

from benthic.kernels.pass_plan.layout import Column, DrawPlan, EntryPlan, PlanBuffers, PlanShape, RatioShape, RowPlan
from benthic.kernels.pass_plan.op import plan_rows, settle_rows

__all__ = [
    "Column",
    "DrawPlan",
    "EntryPlan",
    "PlanBuffers",
    "PlanShape",
    "RatioShape",
    "RowPlan",
    "plan_rows",
    "settle_rows",
]
