"""V4's attention: a window, compressed entries behind it, one shared key = value head, a sink (model.md 2.4).

A layer's ratio says what lies behind the window: nothing (0), entries chosen by an indexer (4, CSA) or all entries
(128, HCA). One softmax runs over window and entries together.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from benthic.kernels.entry_write import (
    CompressorSide,
    Queries,
    compress_entries,
    queries_and_entries,
    query_heads,
    write_kv,
)
from benthic.kernels.linear import Fp8Weight, batched_linear, by_columns, widened_linear
from benthic.kernels.quantize import QuantizedRows
from benthic.kernels.rms_norm import rms_norm
from benthic.kernels.rope import apply_rope
from benthic.kernels.sparse_attention import IndexKeys, Keys, sparse_attention
from benthic.models.attention.compressor import Compressor
from benthic.models.attention.indexer import Attended, BlockIndexer
from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext
from benthic.models.linear import BLOCK, Linear, StackedLinear
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
        # A tile of its scales must not lie across two groups.
        held = numerics if self.output_rank % BLOCK == 0 else None
        self.wo_a = Linear(width // self.groups, self.groups * self.output_rank, held, rounds_input=False)
        self.wo_b = Linear(self.groups * self.output_rank, hidden, numerics)
        self.attn_sink = nn.Parameter(torch.empty(self.heads))
        self.compressor = Compressor(config, ratio, self.dim) if ratio else None
        self.indexer = BlockIndexer(config, numerics, min_rows) if ratio == 4 else None
        self.stacks = self._stack()
        self.frozen_output: Tensor | Fp8Weight | None = None

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
        weight = self._output_weight()
        self.frozen_output = by_columns(weight) if isinstance(weight, Tensor) else weight
        for name, stack in self.stacks.items():
            stack.freeze(self.numerics if name == "raw" else None)

    def forward(self, h: LayerInput, context: AttentionContext, trace: Trace | None = None) -> Tensor:
        """[R, D] normed input -> [R, D]."""
        rope = context.rope(self.ratio)
        stored: Callable[[], tuple[Tensor, Keys, IndexKeys | None]] | None = None
        raw: Callable[[], Tensor] | None = None
        if self._stores_beside_queries(context):
            raw = context.beside(partial(self.stacks["raw"].island, h.values, self.numerics))
        elif self.compressor is not None:
            stored = partial(self._compressed, h.values, context)
            if context.places is not None:  # else entries are written after the window
                stored = context.beside(stored)
        latent, keys = self._latent_and_window(self.stacks["input"].product(h.rounded), context)
        product = self.stacks["query"].product(latent)
        if raw is None:
            queries = self._queries(product, context, trace)
        else:
            queries, keys = self._queries_and_entries(product, raw(), context, h.values.dtype)
        query = queries.query
        picks: list[Tensor | None] | None = None
        if stored is not None:
            products, keys, index_keys = stored()
            if self.indexer is not None:
                assert index_keys is not None
                gamma = products[:, -self.indexer.heads :]
                attended = Attended(query, keys, self.attn_sink, self.scale)
                picks = self.indexer.choose(
                    queries.index_query, gamma, index_keys, attended, self.layer, self.ratio, context, trace
                )
        out = sparse_attention(
            query,
            keys,
            context.plan(self.ratio),
            self.attn_sink,
            self.scale,
            picks,
            inverse_rope=rope,
            min_rows=self.min_rows,
            workspace_bytes=context.workspace_bytes,
        )
        return self._output(out)

    def _stores_beside_queries(self, context: AttentionContext) -> bool:
        """Whether a pass of single rows makes queries and entries in one operation: no indexer has queries then."""
        places = context.places
        alone = self.compressor is not None and self.indexer is None
        return alone and places is not None and places.block_ends(self.ratio).by_rows

    def _queries_and_entries(
        self, product: Tensor, raw: Tensor, context: AttentionContext, dtype: torch.dtype
    ) -> tuple[Queries, Keys]:
        """Per-head queries, and the kv buffer with the entries that this pass stores."""
        places = context.places
        assert places is not None and self.compressor is not None, "see `_stores_beside_queries`"
        side = CompressorSide(self.compressor.ape, self.compressor.norm.weight, *places.entries(self.layer))
        query = queries_and_entries(
            product,
            self.heads,
            self.dim,
            context.rope(self.ratio),
            raw,
            places.raw_state(self.layer),
            places.block_ends(self.ratio),
            (side,),
            self.eps,
            kv_group=self.numerics.kv_group,
            dtype=dtype,
        )
        return Queries(query, None), context.write_entries(self.layer, None)

    def _compressed(self, h: Tensor, context: AttentionContext) -> tuple[Tensor, Keys, IndexKeys | None]:
        """Products of h with the compressors, which entries are stored of, and the buffers with these entries."""
        products = self.stacks["raw"].island(h, self.numerics)
        return products, *self._store_entries(products, context, h.dtype)

    def _latent_and_window(self, product: Tensor, context: AttentionContext) -> tuple[Tensor | QuantizedRows, Keys]:
        """The query latent as its products see it, and the kv buffer with this pass's rows in it."""
        rope, places = context.rope(self.ratio), context.places
        if places is not None:
            latent = write_kv(
                product,
                self.q_norm.weight,
                self.kv_norm.weight,
                rope,
                places.window(self.layer),
                self.eps,
                kv_group=self.numerics.kv_group,
                linear_scale=self.numerics.native_scale,
            )
            rounded = self.numerics.linear_input(latent) if isinstance(latent, Tensor) else latent
            return rounded, context.write_entries(self.layer, None)
        latent, kv = product.split([self.rank, self.dim], dim=-1)
        kv = self.numerics.kv_entry(apply_rope(self.kv_norm(kv), rope), self.rope_dim)
        return self.numerics.linear_input(self.q_norm(latent)), context.write_window(self.layer, kv)

    def _queries(self, product: Tensor, context: AttentionContext, trace: Trace | None) -> Queries:
        """Per-head queries [R, H, d] and, where the indexer scores, its queries [R, Hi, di]."""
        scores = self.indexer is not None and self.indexer.scores(context.plan(self.ratio), trace)
        rope, rows, width = context.rope(self.ratio), product.shape[0], self.heads * self.dim
        if context.places is not None:
            index_heads = self.indexer.heads if self.indexer is not None and scores else 0
            rounding = self.numerics.index_rounding
            return query_heads(
                product, self.heads, self.dim, rope, self.eps, index_heads=index_heads, index_rounding=rounding
            )
        query = apply_rope(rms_norm(product[:, :width].view(rows, self.heads, self.dim), None, self.eps), rope)
        if self.indexer is None or not scores:
            return Queries(query, None)
        return Queries(query, self.indexer.turned(product[:, width:].view(rows, self.indexer.heads, -1), rope))

    def _store_entries(
        self, products: Tensor, context: AttentionContext, dtype: torch.dtype
    ) -> tuple[Keys, IndexKeys | None]:
        """Stores what this pass adds to the compressed side; returns the kv buffer and that of indexer keys."""
        assert self.compressor is not None
        compressors = [self.compressor] if self.indexer is None else [self.compressor, self.indexer.compressor]
        places = context.places
        if places is not None:
            buffers = [places.entries(self.layer), *([places.index(self.layer)] if self.indexer is not None else [])]
            compress_entries(
                products,
                places.raw_state(self.layer),
                places.block_ends(self.ratio),
                tuple(
                    CompressorSide(own.ape, own.norm.weight, *buffer)
                    for own, buffer in zip(compressors, buffers, strict=True)
                ),
                self.eps,
                kv_group=self.numerics.kv_group,
                index_rounding=self.numerics.index_rounding,
                dtype=dtype,
            )
            entries: list[Tensor | None] = [None] * len(compressors)
        else:
            widths = [2 * own.width for own in compressors]
            raw = context.write_raw(self.layer, products[:, : sum(widths)]).split(widths, dim=-1)
            entries = self._pooled(compressors, raw, context, dtype)
        keys = context.write_entries(self.layer, entries[0])
        return keys, None if self.indexer is None else context.write_index(self.layer, entries[1])

    def _pooled(
        self, compressors: list[Compressor], raw: Sequence[Tensor], context: AttentionContext, dtype: torch.dtype
    ) -> list[Tensor | None]:
        """Entries [m, d] and indexer keys [m, di] of the blocks that this pass completes; None where there are none."""
        blocks = context.completed(self.ratio)
        if blocks is None:
            return [None] * len(compressors)
        rope = context.entry_rope(self.ratio)
        pooled = [own.entries(rows, blocks, rope, dtype) for own, rows in zip(compressors, raw, strict=True)]
        rounded: list[Tensor | None] = [self.numerics.kv_entry(pooled[0], self.rope_dim)]
        return rounded + [self.numerics.index_vector(entry) for entry in pooled[1:]]

    def _output(self, out: Tensor) -> Tensor:
        """Grouped low-rank output: [R, H, d] -> [R, D] (model.md 2.4 step 8)."""
        rows = out.reshape(out.shape[0], self.groups, -1)
        weight = self._output_weight() if self.frozen_output is None else self.frozen_output
        if isinstance(weight, Fp8Weight):
            return self.wo_b.product(widened_linear(rows, weight, quantizes=True))
        return self.wo_b(batched_linear(rows, weight).flatten(1))

    def _output_weight(self) -> Tensor | Fp8Weight:
        """`wo_a` by groups: [G, rank, H d / G]."""
        held, by_group = self.wo_a.held(), (self.groups, self.output_rank)
        if isinstance(held, Tensor):
            return held.view(*by_group, -1)
        scale = held.scale.view(self.groups, self.output_rank // BLOCK, -1)
        return Fp8Weight(held.data.view(*by_group, -1), scale)
