"""V4's attention: a window, compressed entries behind it, one shared key = value head, a sink (model.md 2.4).

A layer's ratio says what lies behind the window: nothing (0), entries chosen by an indexer (4, CSA) or all entries
(128, HCA). One softmax runs over window and entries together.
"""

import torch
from torch import Tensor, nn

from benthic.kernels.linear import batched_linear, by_columns
from benthic.kernels.rms_norm import rms_norm
from benthic.kernels.rope import apply_rope
from benthic.kernels.sparse_attention import Keys, sparse_attention
from benthic.models.attention.compressor import Compressor
from benthic.models.attention.indexer import Attended, BlockIndexer
from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext
from benthic.models.linear import Linear, StackedLinear
from benthic.models.norm import RMSNorm
from benthic.models.numerics import LayerInput, Numerics
from benthic.models.trace import Trace


class HybridAttention(nn.Module):
    """Attention of one layer; `layer` is its number in the context."""

    def __init__(self, config: ModelConfig, layer: int, ratio: int, numerics: Numerics, min_rows: int = 1) -> None:
        super().__init__()
        self.layer, self.ratio, self.numerics, self.min_rows = layer, ratio, numerics, min_rows
        self.heads, self.dim, self.rope_dim = config.num_attention_heads, config.head_dim, config.qk_rope_head_dim
        self.scale, self.rank, self.eps = config.softmax_scale, config.q_lora_rank, config.rms_norm_eps
        self.groups, self.output_rank = config.o_groups, config.o_lora_rank
        hidden, width = config.hidden_size, self.heads * self.dim
        self.wq_a = Linear(hidden, self.rank, numerics)
        self.q_norm = RMSNorm(self.rank, self.eps)
        self.wq_b = Linear(self.rank, width, numerics)
        self.wkv = Linear(hidden, self.dim, numerics)
        self.kv_norm = RMSNorm(self.dim, self.eps)
        self.wo_a = Linear(width // self.groups, self.groups * self.output_rank)
        self.wo_b = Linear(self.groups * self.output_rank, hidden, numerics)
        self.attn_sink = nn.Parameter(torch.empty(self.heads))
        self.compressor = Compressor(config, ratio, self.dim) if ratio else None
        self.indexer = BlockIndexer(config, numerics, min_rows) if ratio == 4 else None
        self.stacks = self._stack()
        self.frozen_output: Tensor | None = None

    def _stack(self) -> dict[str, StackedLinear]:
        """Products that share an input: of h in the activation dtype, of h in fp32, of the q latent."""
        stacks = {"input": StackedLinear([self.wq_a, self.wkv]), "query": StackedLinear([self.wq_b])}
        if self.compressor is not None:
            raw = [self.compressor.wkv, self.compressor.wgate]
            if self.indexer is not None:
                index = self.indexer.compressor
                raw += [index.wkv, index.wgate, self.indexer.weights_proj]
                stacks["query"] = StackedLinear([self.wq_b, self.indexer.wq_b], num_isolated=1)
            stacks["raw"] = StackedLinear(raw, num_isolated=3 if self.indexer is not None else 0)
        return stacks

    def freeze(self) -> None:
        """Keeps the stacked weights; call again after weights change."""
        self.frozen_output = by_columns(self.wo_a.weight.view(self.groups, self.output_rank, -1))
        for stack in self.stacks.values():
            stack.freeze()

    def forward(self, h: LayerInput, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        """[R, D] normed input -> [R, D]."""
        rope = context.rope(self.ratio)
        latent, kv = self.stacks["input"].product(h.rounded).split([self.rank, self.dim], dim=-1)
        latent = self.q_norm(latent)
        query, index_query = self._queries(latent)
        query = apply_rope(rms_norm(query, None, self.eps), rope)
        kv = self.numerics.kv_entry(apply_rope(self.kv_norm(kv), rope), self.rope_dim)
        keys = context.write_window(self.layer, kv)
        picks: list[Tensor | None] | None = None
        if self.compressor is not None:
            keys, picks = self._compressed(h.values, index_query, query, context, trace)
        out = sparse_attention(
            query,
            keys,
            context.plan(self.ratio),
            self.attn_sink,
            self.scale,
            picks,
            min_rows=self.min_rows,
            workspace_bytes=context.workspace_bytes,
        )
        return self._output(apply_rope(out, rope, inverse=True))

    def _queries(self, latent: Tensor) -> tuple[Tensor, Tensor | None]:
        """Per-head queries [R, H, d] and, in CSA layers, indexer queries [R, Hi, di]."""
        rows, width = latent.shape[0], self.heads * self.dim
        stacked = self.stacks["query"](latent)
        query = stacked[:, :width].view(rows, self.heads, self.dim)
        if self.indexer is None:
            return query, None
        return query, stacked[:, width:].view(rows, self.indexer.heads, self.indexer.dim)

    def _compressed(
        self, h: Tensor, index_query: Tensor | None, query: Tensor, context: AttentionContext, trace: Trace | None
    ) -> tuple[Keys, list[Tensor | None] | None]:
        """Stores what this pass adds to the compressed side; returns the kv buffer and the indexer's choice."""
        assert self.compressor is not None
        blocks = context.completed(self.ratio)
        products = self.stacks["raw"].island(h, self.numerics)
        width, dtype = 2 * self.compressor.width, h.dtype
        index_width = 2 * self.indexer.compressor.width if self.indexer is not None else 0
        raw = context.write_raw(self.layer, products[:, : width + index_width])
        entries = None
        if blocks is not None:
            entries = self.compressor.entries(raw[:, :width], blocks, context.entry_rope(self.ratio), dtype)
            entries = self.numerics.kv_entry(entries, self.rope_dim)
        keys = context.write_entries(self.layer, entries)
        if self.indexer is None:
            return keys, None
        assert index_query is not None
        index_entries = None
        if blocks is not None:
            rope = context.entry_rope(self.ratio)
            index_entries = self.indexer.compressor.entries(raw[:, width:], blocks, rope, dtype)
            index_entries = self.numerics.index_vector(index_entries)
        index_keys = context.write_index(self.layer, index_entries)
        gamma = products[:, width + index_width :]
        attended = Attended(query, keys, self.attn_sink, self.scale)
        return keys, self.indexer.choose(
            index_query, gamma, index_keys, attended, self.layer, self.ratio, context, trace
        )

    def _output(self, out: Tensor) -> Tensor:
        """Grouped low-rank output: [R, H, d] -> [R, D] (model.md 2.4 step 8)."""
        rows = out.shape[0]
        weight = self.frozen_output
        if weight is None:
            weight = self.wo_a.weight.view(self.groups, self.output_rank, -1)
        low = batched_linear(out.reshape(rows, self.groups, -1), weight)
        return self.wo_b(low.reshape(rows, -1))
