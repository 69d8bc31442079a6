"""The second half of a layer: a dense MLP, or fine-grained routed experts beside a shared one (model.md 2.8)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benthic.kernels.fp8_product import fp8_gated_product, in_eights, takes_gated
from benthic.kernels.linear import Fp8Weight, by_columns
from benthic.kernels.moe_experts import PickedRows
from benthic.kernels.moe_route import ExpertRows, GroupLimit, Routing, moe_route, route_rows
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.swiglu import swiglu, swiglu_rows
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.context import AttentionContext, Rows
from benthic.models.experts import Experts, NativeExperts
from benthic.models.linear import Linear, StackedLinear, island, island_weight
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
        self.frozen: Tensor | None = None
        self.bias: Tensor | None
        self.tid2eid: Tensor | None
        is_hash, is_biased = layer.routing == "hash", layer.routing == "bias"
        table = torch.zeros(config.vocab_size, self.top_k, dtype=torch.int64) if is_hash else None
        self.register_buffer("tid2eid", table)
        self.register_buffer("bias", torch.zeros(config.n_routed_experts) if is_biased else None)

    def logits(self, x: Tensor) -> Tensor:
        """[R, D] -> fp32 [R, E]: an island of full precision."""
        return island(x, self.weight if self.frozen is None else self.frozen, self.numerics)

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

    def expert_rows(self, logits: Tensor, rows: Rows, replay: Tensor | None = None) -> ExpertRows:
        """Routes rows by their logits [R, E] likewise, and lists every expert's rows; dummies go nowhere."""
        is_hash = self.tid2eid is not None and replay is None
        if replay is not None:
            replay = F.pad(replay, (0, 0, 0, logits.shape[0] - replay.shape[0]))
        return route_rows(
            logits,
            top_k=self.top_k,
            scale=self.scale,
            score=self.score,
            bias=self.bias,
            experts=replay,
            table=self.tid2eid if is_hash else None,
            token_ids=rows.token_ids if is_hash else None,
            normalize=self.normalize,
            floor=self.floor,
            limit=self.limit,
            num_rows=rows.live(),
        )

    def freeze(self) -> None:
        """Lays the weight out for serving; values stay. Call again after weights change."""
        self.weight.data = by_columns(self.weight)
        is_wide = self.numerics.is_native or self.weight.dtype.itemsize >= 4
        self.frozen = None if is_wide else island_weight(self.weight, self.numerics)


def group_limit(config: ModelConfig) -> GroupLimit | None:
    """The groups that a row's experts must come from: V2 ranks them by their best expert, V3 by their best two."""
    if config.topk_method == "greedy" or config.n_group == 1:
        return None
    return GroupLimit(config.n_group, config.topk_group, 2 if config.topk_method == "noaux_tc" else 1)


class DenseMlp(nn.Module):
    """down(silu(gate x) * up x), clamped where the family clamps; `w1` is gate, `w3` up, `w2` down."""

    def __init__(self, config: ModelConfig, numerics: Numerics, width: int | None = None) -> None:
        super().__init__()
        width = config.intermediate_size if width is None else width
        self.w1 = Linear(config.hidden_size, width, numerics)
        self.w2 = Linear(width, config.hidden_size, numerics)
        self.w3 = Linear(config.hidden_size, width, numerics)
        self.limit, self.numerics = config.swiglu_limit, numerics
        self.stack = StackedLinear([self.w1, self.w3])
        self.eights: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """[R, D] -> [R, D]."""
        return self.product(self.numerics.linear_input(x))

    def product(self, x: Tensor | QuantizedRows) -> Tensor:
        """The same of an input that is rounded already."""
        if isinstance(x, QuantizedRows):
            return self.w2.product(self._inner(x))
        return self.w2(swiglu(self.stack.product(x), self.limit))

    def _inner(self, x: QuantizedRows) -> QuantizedRows:
        """silu(gate x) * up x, rounded as `w2` reads it."""
        weight, scale = self.stack.frozen, self.numerics.native_scale
        assert scale is not None, "only native models round rows to FP8"
        if self.eights is None or not isinstance(weight, Fp8Weight):
            return swiglu_rows(self.stack.product(x), self.limit, scale)
        rows = fp8_gated_product(x, self.eights, weight.scale[None], None, None, None, None, self.limit)
        assert rows is not None, "the kernel ran when weights were laid out"
        return rows

    def freeze(self) -> None:
        """Keeps the stacked weight; call again after weights change.

        Where one kernel multiplies and activates, it takes gates and ups by eights: a second layout of these weights.
        """
        self.stack.freeze()
        weight = self.stack.frozen
        if isinstance(weight, Fp8Weight) and self.numerics.native_scale == "ue8m0" and takes_gated(weight.data):
            self.eights = in_eights(weight.data[None])


class MoE(nn.Module):
    """Router, routed experts and shared experts of one layer."""

    def __init__(self, config: ModelConfig, layer: LayerSpec, numerics: Numerics, min_rows: int) -> None:
        super().__init__()
        self.gate = Router(config, layer, numerics)
        self.experts = NativeExperts(config) if numerics.is_native else Experts(config, numerics, min_rows)
        # Shared experts are one MLP as wide as all of them: every row takes them, and no gate weighs them.
        self.shared_experts = DenseMlp(config, numerics, config.moe_intermediate_size * config.n_shared_experts)

    def forward(
        self, x: LayerInput, context: AttentionContext, layer: int, trace: Trace | None = None
    ) -> tuple[Tensor | PickedRows, Tensor | None]:
        """[R, D] -> the output [R, D]; or its routed half, fp32, and its shared one.

        Dummy rows see the shared experts only.

        Args:
            layer: the layer's number in `trace`, which is told where rows went and may say where they shall go.
        """
        rows = context.rows
        shared = context.beside(lambda: self.shared_experts.product(x.rounded))
        logits = self.gate.logits(x.values)
        if isinstance(self.experts, NativeExperts):
            routing = self.gate.expert_rows(logits, rows, None if trace is None else trace.replay.get(layer))
            if trace is not None:
                _note_routes(trace, layer, logits, routing, rows.num_rows)
            return self.experts(x.rounded, routing, shared(), x.alone), None
        assert isinstance(x.rounded, Tensor), "wide experts take wide rows"
        return self._routed(logits, x.rounded, rows, layer, trace), shared()

    def _routed(self, logits: Tensor, x: Tensor, rows: Rows, layer: int, trace: Trace | None) -> Tensor:
        num_rows = rows.num_rows
        logits = logits[:num_rows]
        replay = None if trace is None else trace.replay.get(layer)
        routing = self.gate(logits, rows.token_ids[:num_rows], replay)
        if trace is not None:
            routing = trace.routed(layer, logits, routing)
        routed: Tensor = self.experts(x[:num_rows], routing)
        missing = x.shape[0] - num_rows
        return torch.cat([routed, routed.new_zeros(missing, routed.shape[1])]) if missing else routed


def _note_routes(trace: Trace, layer: int, logits: Tensor, routing: ExpertRows, num_rows: int) -> None:
    assert trace.keep is None, "tokens are dropped in training alone, which has wide experts"
    chosen = Routing(weights=routing.weights[:num_rows], experts=routing.experts[:num_rows].to(torch.int64))
    trace.routed(layer, logits[:num_rows], chosen)
