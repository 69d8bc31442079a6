"""Multi-head latent attention (family.md 3): a token leaves one latent that all heads read, and one rotated key.

Two forms compute the same function. Expanded: keys and values of every head are made from the latents, as the model
was defined. Absorbed: each head's part of `wkv_b` moves to the query and to the output, so that all heads read the
latents themselves, as one key of `kv_lora_rank + qk_rope_head_dim` numbers whose first `kv_lora_rank` are the value;
nothing but latents is then stored or gathered. The context says which form runs.

As a layer of the family it has compression ratio 1: every token is an entry, visible to itself and to all after it.
"""

import torch
from torch import Tensor, nn

from benthic.kernels.head_attention import head_attention
from benthic.kernels.linear import batched_linear, by_columns, linear
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.rope import apply_rope
from benthic.kernels.sparse_attention import Keys, sparse_attention
from benthic.models.attention.indexer import Attended, TokenIndexer
from benthic.models.config import LayerSpec, ModelConfig
from benthic.models.context import AttentionContext
from benthic.models.linear import Linear, StackedLinear
from benthic.models.norm import RMSNorm
from benthic.models.numerics import LayerInput, Numerics
from benthic.models.trace import Trace


class LatentAttention(nn.Module):
    """Attention of one layer; `layer` is its number in the context."""

    def __init__(self, config: ModelConfig, layer: int, spec: LayerSpec, numerics: Numerics, min_rows: int = 1) -> None:
        super().__init__()
        self.layer, self.ratio, self.numerics, self.min_rows = layer, spec.ratio, numerics, min_rows
        self.heads, self.scale = config.num_attention_heads, config.softmax_scale
        self.latent_dim, self.rope_dim = config.kv_lora_rank, config.qk_rope_head_dim
        self.nope_dim, self.value_dim = config.qk_nope_head_dim, config.v_head_dim
        hidden, eps, rank = config.hidden_size, config.rms_norm_eps, config.q_lora_rank
        query_width = self.heads * (self.nope_dim + self.rope_dim)
        if not rank:
            self.wq = Linear(hidden, query_width, numerics)
        else:
            self.wq_a = Linear(hidden, rank, numerics)
            self.q_norm = RMSNorm(rank, eps)
            self.wq_b = Linear(rank, query_width, numerics)
        self.wkv_a = Linear(hidden, self.latent_dim + self.rope_dim, numerics)
        self.kv_norm = RMSNorm(self.latent_dim, eps)
        # Its input is not rounded: absorbed, it multiplies queries and sums instead of latents.
        self.wkv_b = Linear(self.latent_dim, self.heads * (self.nope_dim + self.value_dim))
        self.wo = Linear(self.heads * self.value_dim, hidden, numerics)
        self.indexer = TokenIndexer(config, numerics, min_rows) if spec.has_index else None
        self.query_rank = rank
        self.stacks = self._stack()
        self.frozen_parts: tuple[Tensor, Tensor] | None = None

    def _stack(self) -> dict[str, StackedLinear]:
        """Products that share an input: of h in the activation dtype, of the q latent, of h in fp32."""
        first = self.wq_a if self.query_rank else self.wq
        if self.indexer is None:
            stacks = {"input": StackedLinear([first, self.wkv_a])}
            return stacks | {"query": StackedLinear([self.wq_b])} if self.query_rank else stacks
        return {
            "input": StackedLinear([first, self.wkv_a, self.indexer.wk], num_isolated=1),
            "query": StackedLinear([self.wq_b, self.indexer.wq_b], num_isolated=1),
            "gamma": StackedLinear([self.indexer.weights_proj], num_isolated=1),
        }

    def freeze(self) -> None:
        """Keeps stacked weights and both parts of `wkv_b`; call again after weights change."""
        to_latent, from_latent = self._parts()
        self.frozen_parts = by_columns(to_latent), by_columns(from_latent)
        for stack in self.stacks.values():
            stack.freeze()

    def forward(self, h: LayerInput, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        """[R, D] normed input -> [R, D]."""
        rope = context.rope(self.ratio)
        first, kv, raw_index = self._inputs(h.rounded)
        query, index_query = self._queries(first)
        query = apply_rope(query, rope)
        latent, key = kv.split([self.latent_dim, self.rope_dim], dim=-1)
        entries = apply_rope(torch.cat((self.kv_norm(latent), key), dim=-1), rope)
        entries = self.numerics.kv_entry(entries, self.rope_dim)
        keys = context.write_entries(self.layer, entries[: context.rows.num_rows])
        to_latent, from_latent = self._parts() if self.frozen_parts is None else self.frozen_parts
        is_absorbed = context.latent_form == "absorbed"
        latent_query = query
        if is_absorbed or (trace is not None and trace.wants_index_loss):
            still, turned = query.split([self.nope_dim, self.rope_dim], dim=-1)
            latent_query = torch.cat((batched_linear(still, to_latent), turned), dim=-1)
        picks: list[Tensor | None] | None = None
        if self.indexer is not None:
            assert index_query is not None
            scores = self.indexer.scores(context.plan(self.ratio), trace)
            index_query = self.indexer.turned(index_query, rope) if scores else None
            gamma = self.stacks["gamma"].island(h.values, self.numerics)
            attended = Attended(latent_query, keys, None, self.scale)
            index_keys = context.write_index(self.layer, self.indexer.key(raw_index, rope)[: context.rows.num_rows])
            picks = self.indexer.choose(
                index_query, gamma, index_keys, attended, self.layer, self.ratio, context, trace
            )
        if is_absorbed:
            out = batched_linear(self._absorbed(latent_query, keys, picks, context), from_latent)
        else:
            out = self._expanded(query, keys, picks, context)
        return self.wo(out.flatten(1))

    def _inputs(self, h: Tensor | QuantizedRows) -> tuple[Tensor, Tensor, Tensor]:
        """Products of h: the query or its latent, the row's entry and its index key, both raw."""
        stack = self.stacks["input"]
        widths = stack.widths if self.indexer is not None else [*stack.widths, 0]
        first, kv, raw_index = stack.product(h).split(widths, dim=-1)
        return first, kv, raw_index

    def _queries(self, first: Tensor) -> tuple[Tensor, Tensor | None]:
        """Per-head queries [R, H, nope + rope], not turned yet, and indexer queries [R, Hi, di] where there are any."""
        rows, width = first.shape[0], self.heads * (self.nope_dim + self.rope_dim)
        stacked = self.stacks["query"](self.q_norm(first)) if self.query_rank else first
        query = stacked[:, :width].view(rows, self.heads, -1)
        if self.indexer is None:
            return query, None
        return query, stacked[:, width:].view(rows, self.indexer.heads, self.indexer.dim)

    def _parts(self) -> tuple[Tensor, Tensor]:
        """`wkv_b` by heads: from query to latent [H, latent, nope], and from latent to value [H, value, latent]."""
        by_head = self.wkv_b.weight.view(self.heads, self.nope_dim + self.value_dim, self.latent_dim)
        to_key, to_value = by_head.split([self.nope_dim, self.value_dim], dim=1)
        return to_key.transpose(1, 2).contiguous(), to_value

    def _absorbed(
        self, query: Tensor, keys: Keys, picks: list[Tensor | None] | None, context: AttentionContext
    ) -> Tensor:
        """Attention over the latents themselves: [R, H, latent + rope] -> [R, H, latent]."""
        return sparse_attention(
            query,
            keys,
            context.plan(self.ratio),
            None,
            self.scale,
            picks,
            value_dim=self.latent_dim,
            min_rows=self.min_rows,
            workspace_bytes=context.workspace_bytes,
        )

    def _expanded(
        self, query: Tensor, keys: Keys, picks: list[Tensor | None] | None, context: AttentionContext
    ) -> Tensor:
        """Attention over keys and values of every head: [R, H, nope + rope] -> [R, H, value]."""
        assert isinstance(keys, Tensor), "the expanded form reads a packed pass's own entries"
        latent, key = keys.split([self.latent_dim, self.rope_dim], dim=-1)
        made = linear(latent, self.wkv_b.weight).view(len(keys), self.heads, -1)
        still, value = made.split([self.nope_dim, self.value_dim], dim=-1)
        whole = torch.cat((still, key[:, None, :].expand(-1, self.heads, -1)), dim=-1)
        plan, bound = context.plan(self.ratio), context.workspace_bytes
        return head_attention(query, whole, value, plan, self.scale, picks, workspace_bytes=bound)
