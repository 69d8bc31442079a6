"""The second half of a layer: a dense MLP, or fine-grained routed experts beside a shared one (model.md 2.8)."""

import torch
from torch import Tensor, nn

from benthic.kernels.grouped_linear import grouped_linear
from benthic.kernels.linear import by_columns
from benthic.kernels.moe_permute import moe_combine, moe_dispatch, moe_permute
from benthic.kernels.moe_route import GroupLimit, Routing, moe_route
from benthic.kernels.swiglu import swiglu
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.context import Rows
from benthic.models.linear import Linear, StackedLinear, island
from benthic.models.numerics import LayerInput, Numerics
from benthic.models.trace import Trace


class Router(nn.Module):
    """Chooses experts: by score (with a correction bias, within the best groups, as configured) or by token id."""

    def __init__(self, config: ModelConfig, layer: LayerSpec, numerics: Numerics) -> None:
        super().__init__()
        self.numerics = numerics
        self.top_k, self.scale = config.num_experts_per_tok, config.routed_scaling_factor
        self.score, self.normalize = config.scoring_func, config.norm_topk_prob
        self.limit = group_limit(config)
        # As published; V4's gate has none, and needs none.
        self.floor = 1e-20 if config.scoring_func == "sigmoid" else 0.0
        self.weight = nn.Parameter(torch.empty(config.n_routed_experts, config.hidden_size))
        self.bias: Tensor | None
        self.tid2eid: Tensor | None
        is_hash, is_biased = layer.routing == "hash", layer.routing == "bias"
        table = torch.zeros(config.vocab_size, self.top_k, dtype=torch.int64) if is_hash else None
        self.register_buffer("tid2eid", table)
        self.register_buffer("bias", torch.zeros(config.n_routed_experts) if is_biased else None)

    def logits(self, x: Tensor) -> Tensor:
        """[R, D] -> fp32 [R, E]: an island of full precision."""
        return island(x, self.weight, self.numerics)

    def forward(self, logits: Tensor, token_ids: Tensor, replay: Tensor | None = None) -> Routing:
        """Routes rows by their logits [T, E], by their ids [T] (hash), or as `replay` [T, K] says."""
        experts = replay
        if experts is None and self.tid2eid is not None:
            experts = self.tid2eid.index_select(0, token_ids)
        return moe_route(
            logits,
            top_k=self.top_k,
            scale=self.scale,
            score=self.score,
            bias=self.bias,
            experts=experts,
            normalize=self.normalize,
            floor=self.floor,
            limit=self.limit,
        )

    def freeze(self) -> None:
        """Lays the weight out for serving; values stay."""
        self.weight.data = by_columns(self.weight)


def group_limit(config: ModelConfig) -> GroupLimit | None:
    """The groups that a row's experts must come from: V2 ranks them by their best expert, V3 by their best two."""
    if config.topk_method == "greedy" or config.n_group == 1:
        return None
    return GroupLimit(config.n_group, config.topk_group, 2 if config.topk_method == "noaux_tc" else 1)


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


class DenseMlp(nn.Module):
    """down(silu(gate x) * up x), clamped where the family clamps; `w1` is gate, `w3` up, `w2` down."""

    def __init__(self, config: ModelConfig, numerics: Numerics, width: int | None = None) -> None:
        super().__init__()
        width = config.intermediate_size if width is None else width
        self.w1 = Linear(config.hidden_size, width, numerics)
        self.w2 = Linear(width, config.hidden_size, numerics)
        self.w3 = Linear(config.hidden_size, width, numerics)
        self.limit = config.swiglu_limit
        self.stack = StackedLinear([self.w1, self.w3])

    def forward(self, x: Tensor) -> Tensor:
        """[R, D] -> [R, D]."""
        return self.w2(swiglu(self.stack(x), self.limit))

    def product(self, x: Tensor) -> Tensor:
        """The same of an input that is rounded already."""
        return self.w2(swiglu(self.stack.product(x), self.limit))

    def freeze(self) -> None:
        """Keeps the stacked weight; call again after weights change."""
        self.stack.freeze()


class MoE(nn.Module):
    """Router, routed experts and shared experts of one layer."""

    def __init__(self, config: ModelConfig, layer: LayerSpec, numerics: Numerics, min_rows: int) -> None:
        super().__init__()
        self.gate = Router(config, layer, numerics)
        self.experts = Experts(config, numerics, min_rows)
        # Shared experts are one MLP as wide as all of them: every row takes them, and no gate weighs them.
        self.shared_experts = DenseMlp(config, numerics, config.moe_intermediate_size * config.n_shared_experts)

    def forward(self, x: LayerInput, rows: Rows, layer: int, trace: Trace | None = None) -> tuple[Tensor, Tensor]:
        """[R, D] -> the routed half of the output, fp32 [R, D], and the shared one [R, D].

        Dummy rows see the shared experts only.

        Args:
            layer: the layer's number in `trace`, which is told where rows went and may say where they shall go.
        """
        num_rows = rows.num_rows
        logits = self.gate.logits(x.values)[:num_rows]
        replay = None if trace is None else trace.replay.get(layer)
        routing = self.gate(logits, rows.token_ids[:num_rows], replay)
        if trace is not None:
            routing = trace.routed(layer, logits, routing)
        routed = self.experts(x.rounded[:num_rows], routing)
        missing = x.values.shape[0] - num_rows
        if missing:
            routed = torch.cat([routed, routed.new_zeros(missing, routed.shape[1])])
        return routed, self.shared_experts.product(x.rounded)
