"""Routed experts from gather to weighted sum, over weights held in FP4 or FP8."""

from benthic.kernels.moe_experts.layout import Kind
from benthic.kernels.moe_experts.op import picked_experts, routed_experts
from benthic.kernels.moe_experts.picked import PickedRows
from benthic.kernels.moe_experts.reference import Experts
from benthic.kernels.moe_experts.spans import Spans
from benthic.kernels.moe_experts.weights import Fp4Experts, Fp8Experts, pack_fp4_experts

__all__ = [
    "Experts",
    "Fp4Experts",
    "Fp8Experts",
    "Kind",
    "PickedRows",
    "Spans",
    "pack_fp4_experts",
    "picked_experts",
    "routed_experts",
]
