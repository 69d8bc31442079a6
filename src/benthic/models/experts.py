"""Routed experts: as stacked wide matrices that can be trained, or held as they were released (model.md 2.8)."""

from typing import Literal

import torch
from torch import Tensor, nn

from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import by_columns
from benthic.kernels.moe_experts import Fp4Experts, Fp8Experts, PickedRows, pack_fp4_experts, picked_experts
from benthic.kernels.moe_permute import moe_combine, moe_dispatch, moe_permute
from benthic.kernels.moe_route import ExpertRows, Routing
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.swiglu import swiglu
from benthic.models.config import ModelConfig
from benthic.models.numerics import Numerics

Stack = Literal["w13", "w2"]
"""The matrices of all experts of a layer: [E, 2F, D] (gate rows, then up), or [E, D, F]."""


class Experts(nn.Module):
    """Routed experts, stacked: `w13` [E, 2F, D] (gate rows, then up), `w2` [E, D, F]."""

    def __init__(self, config: ModelConfig, numerics: Numerics, min_rows: int) -> None:
        super().__init__()
        experts, hidden, width = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self.w13 = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.w2 = nn.Parameter(torch.empty(experts, hidden, width))
        self.limit, self.numerics, self.min_rows = config.swiglu_limit, numerics, min_rows

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """Rounded rows [T, D] and their routing -> fp32 [T, D]: the weighted sum over a row's experts, as chosen."""
        plan = moe_permute(routing.experts, self.w13.shape[0], self.min_rows)
        rows = moe_dispatch(x, plan)
        weights = routing.weights.reshape(-1).index_select(0, plan.pick)
        gate_up = grouped_linear(rows, self.w13, plan.group_ends)
        inner = self.numerics.linear_input(swiglu(gate_up, self.limit, weights))
        return moe_combine(grouped_linear(inner, self.w2, plan.group_ends), plan)

    def freeze(self) -> None:
        """Lays the weights out for serving; values stay."""
        self.w13.data, self.w2.data = by_columns(self.w13), by_columns(self.w2)


class NativeExperts(nn.Module):
    """Routed experts in FP4 or FP8, multiplied as they are: from rows to the weighted sum in one operation.

    Nothing is held until `hold` was called for both stacks.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.form, self.limit = config.expert_dtype, config.swiglu_limit
        self.num_experts = config.n_routed_experts
        self.stacks: dict[Stack, Fp4Experts | Fp8Experts] = {}

    def forward(
        self, x: QuantizedRows, routing: ExpertRows, shared: Tensor, alone: Tensor | None = None
    ) -> Tensor | PickedRows:
        """Rows [R, D], where they go, and the shared experts' output [R, D] -> the sum of both, in its dtype.

        Of few rows on a GPU it is left to whoever reads it. `alone`: see LayerInput.
        """
        w13, w2 = self.stacks["w13"], self.stacks["w2"]
        return picked_experts(x, routing, w13, w2, self.limit, shared, alone)

    def hold(self, stack: Stack, codes: Tensor, scale: Tensor) -> None:
        """Takes a stack's released codes and scales: FP4 as for `pack_fp4_experts`, FP8 as for `Fp8Experts`."""
        held: Fp4Experts | Fp8Experts
        if self.form == "fp4":
            held = pack_fp4_experts(codes, scale, stack)
            codes, scale = held.codes, held.scale
        else:
            held = Fp8Experts(codes, scale)
        self.stacks[stack] = held
        self.register_buffer(stack, codes)
        self.register_buffer(f"{stack}_scale", scale)
