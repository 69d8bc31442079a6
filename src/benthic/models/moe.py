"""Mixture of experts: fine-grained routed experts and a shared one (model.md 2.8)."""

import torch
from torch import Tensor, nn

from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import by_columns, linear
from benthic.kernels.moe_permute import moe_combine, moe_dispatch, moe_permute
from benthic.kernels.moe_route import Routing, moe_route
from benthic.kernels.precision import wide
from benthic.kernels.swiglu import swiglu
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.linear import Linear, StackedLinear
from benthic.models.numerics import Numerics


class Router(nn.Module):
    """Chooses experts: by score plus correction bias, or by token id."""

    def __init__(self, config: ModelConfig, layer: LayerSpec) -> None:
        super().__init__()
        self.top_k, self.scale = config.num_experts_per_tok, config.routed_scaling_factor
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.bias: Tensor | None
        self.tid2eid: Tensor | None
        if layer.routing == "hash":
            table = torch.zeros(config.vocab_size, self.top_k, dtype=torch.int64)
            self.register_buffer("tid2eid", table)
            self.bias = None
        else:
            self.register_buffer("bias", torch.zeros(config.n_routed_experts))
            self.tid2eid = None

    def forward(self, x: Tensor, token_ids: Tensor, num_rows: int, replay: Tensor | None) -> Routing:
        """Routes the first `num_rows` rows of x [R, D]; logits are an fp32 island."""
        logits = linear(wide(x), wide(self.weight))[:num_rows]
        experts = replay
        if experts is None and self.tid2eid is not None:
            experts = self.tid2eid.index_select(0, token_ids[:num_rows])
        return moe_route(logits, top_k=self.top_k, scale=self.scale, bias=self.bias, experts=experts)

    def freeze(self) -> None:
        """Lays the weight out for serving; values stay."""
        self.weight.data = by_columns(self.weight)


class Experts(nn.Module):
    """Routed experts, stacked: `w13` [E, 2F, D] (gate rows, then up), `w2` [E, D, F]."""

    def __init__(self, config: ModelConfig, numerics: Numerics, min_rows: int) -> None:
        super().__init__()
        experts, hidden, width = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
        self.w13 = nn.Parameter(torch.empty(experts, 2 * width, hidden))
        self.w2 = nn.Parameter(torch.empty(experts, hidden, width))
        self.limit, self.numerics, self.min_rows = config.swiglu_limit, numerics, min_rows

    def forward(self, x: Tensor, routing: Routing) -> Tensor:
        """[T, D] and its routing -> fp32 [T, D]: the weighted sum over each row's experts, in order of choice."""
        plan = moe_permute(routing.experts, self.w13.shape[0], self.min_rows)
        rows = moe_dispatch(self.numerics.linear_input(x), plan)
        weights = routing.weights.reshape(-1).index_select(0, plan.pick)
        gate_up = grouped_linear(rows, self.w13, plan.group_ends)
        inner = self.numerics.linear_input(swiglu(gate_up, self.limit, weights))
        return moe_combine(grouped_linear(inner, self.w2, plan.group_ends), plan)

    def freeze(self) -> None:
        """Lays the weights out for serving; values stay."""
        self.w13.data, self.w2.data = by_columns(self.w13), by_columns(self.w2)


class SharedExpert(nn.Module):
    """The expert that every row takes: same function, same clamp, no gate weight."""

    def __init__(self, config: ModelConfig, numerics: Numerics) -> None:
        super().__init__()
        width = config.moe_intermediate_size * config.n_shared_experts
        self.w1 = Linear(config.hidden_size, width, numerics)
        self.w2 = Linear(width, config.hidden_size, numerics)
        self.w3 = Linear(config.hidden_size, width, numerics)
        self.limit = config.swiglu_limit
        self.stack = StackedLinear([self.w1, self.w3])

    def forward(self, x: Tensor) -> Tensor:
        """[R, D] -> [R, D]."""
        return self.w2(swiglu(self.stack(x), self.limit))

    def freeze(self) -> None:
        """Keeps the stacked weight; call again after weights change."""
        self.stack.freeze()


class MoE(nn.Module):
    """Router, routed experts and shared expert of one layer."""

    def __init__(self, config: ModelConfig, layer: LayerSpec, numerics: Numerics, min_rows: int) -> None:
        super().__init__()
        self.gate = Router(config, layer)
        self.experts = Experts(config, numerics, min_rows)
        self.shared_experts = SharedExpert(config, numerics)

    def forward(self, x: Tensor, token_ids: Tensor, num_rows: int, replay: Tensor | None) -> tuple[Tensor, Tensor]:
        """[R, D] -> output [R, D] and routed experts [num_rows, K]. Dummy rows see the shared expert only."""
        routing = self.gate(x, token_ids, num_rows, replay)
        routed = self.experts(x[:num_rows], routing)
        shared = wide(self.shared_experts(x))
        if num_rows < x.shape[0]:
            routed = torch.cat([routed, routed.new_zeros(x.shape[0] - num_rows, x.shape[1])])
        return (routed + shared).to(x.dtype), routing.experts
