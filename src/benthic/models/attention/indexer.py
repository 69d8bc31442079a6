"""The lightning indexer: which entries a query reads, of compressed blocks (model.md 2.6) or of tokens (family.md 5).

An indexer scores entries with small heads of its own, h: sum_h gamma_h relu(q_h . k), and keeps the best `index_topk`.
The families differ in how its keys are made and how they turn.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from benthic.kernels.index_scores import all_visible, pick_entries
from benthic.kernels.rope import Pairing, RopeTable, apply_rope
from benthic.kernels.sparse_attention import IndexKeys, Keys, TilePlan
from benthic.models.attention.compressor import Compressor
from benthic.models.attention.index_training import layer_index_loss
from benthic.models.config import ModelConfig
from benthic.models.context import AttentionContext
from benthic.models.linear import Linear
from benthic.models.norm import LayerNorm
from benthic.models.numerics import Numerics
from benthic.models.trace import Trace

KEY_NORM_EPS = 1e-6
"""Of V3.2's layer norm, whatever `rms_norm_eps` says."""


class Attended(NamedTuple):
    """What a layer's attention works on: query [R, H, d], its kv buffer, sinks [H] or None, and the softmax scale."""

    query: Tensor
    keys: Keys
    sink: Tensor | None
    scale: float


class Indexer(nn.Module):
    """Scores entries and keeps the best `index_topk`; the base of both families' indexers."""

    def __init__(self, config: ModelConfig, numerics: Numerics, min_rows: int, pairing: Pairing) -> None:
        super().__init__()
        self.heads, self.dim, self.top_k = config.index_n_heads, config.index_head_dim, config.index_topk
        self.wq_b = Linear(config.q_lora_rank, self.heads * self.dim, numerics)
        self.weights_proj = Linear(config.hidden_size, self.heads)
        self.gamma_scale = self.dim**-0.5 * self.heads**-0.5
        self.numerics, self.min_rows, self.pairing = numerics, min_rows, pairing

    def turned(self, x: Tensor, rope: RopeTable) -> Tensor:
        """Queries [R, Hi, di] or keys [R, di] at their positions, rounded as the policy says."""
        return self.numerics.index_vector(apply_rope(x, rope, pairing=self.pairing))

    def scores(self, plan: TilePlan, trace: Trace | None) -> bool:
        """Whether a pass needs scores: some row sees more than it keeps, or the indexer learns."""
        return self._selects(plan) or (trace is not None and trace.wants_index_loss)

    def choose(
        self,
        query: Tensor | None,
        gamma: Tensor,
        keys: IndexKeys,
        attended: Attended,
        layer: int,
        ratio: int,
        context: AttentionContext,
        trace: Trace | None,
    ) -> list[Tensor | None] | None:
        """The entries that each row keeps, by groups of tiles; None where every row attends to all that it sees.

        Leaves in the trace what is asked. `query` [R, Hi, di] is turned, and None where nothing `scores`; `gamma`
        [R, Hi] is not scaled.
        """
        plan, num_rows = context.plan(ratio), context.rows.num_rows
        picks: list[Tensor | None] | None = None
        if trace is not None and trace.wants_index_loss:
            assert query is not None
            assert isinstance(attended.keys, Tensor) and isinstance(keys, Tensor), "packed keys have no gradient"
            trace.index_losses[layer] = layer_index_loss(
                query,
                gamma * self.gamma_scale,
                keys,
                attended.query,
                attended.keys,
                plan,
                attended.sink,
                attended.scale,
                num_rows,
            )
        if self._selects(plan) and not (trace is not None and trace.dense_selection):
            assert query is not None
            picks = self.picks(query, gamma, keys, plan, context.workspace_bytes)
        if trace is not None and trace.wants_picks:
            trace.picks[layer] = self.picks_of_rows(picks, plan, num_rows)
        return picks

    def _selects(self, plan: TilePlan) -> bool:
        return any(tiles.max_visible > self.top_k for tiles in plan.groups)

    def picks(
        self, query: Tensor, gamma: Tensor, keys: IndexKeys, plan: TilePlan, workspace_bytes: int
    ) -> list[Tensor | None]:
        """For each group of tiles the entries that stay, int32 [n, Q, k]; None where all visible ones do."""
        return [
            pick_entries(
                query,
                gamma,
                keys,
                tiles,
                self.top_k,
                gamma_scale=self.gamma_scale,
                min_rows=self.min_rows,
                workspace_bytes=workspace_bytes,
            )
            if tiles.max_visible > self.top_k
            else None
            for tiles in plan.groups
        ]

    def picks_of_rows(self, picks: list[Tensor | None] | None, plan: TilePlan, num_rows: int) -> Tensor:
        """The same by rows: int32 [num_rows, top_k], ascending, -1 at the end where there are fewer."""
        parts = []
        for number, tiles in enumerate(plan.groups):
            chosen = None if picks is None else picks[number]
            chosen = all_visible(tiles, self.top_k) if chosen is None else chosen
            missing = self.top_k - chosen.shape[-1]
            parts.append(torch.nn.functional.pad(chosen, (0, missing), value=-1).flatten(0, 1))
        return torch.cat(parts).index_select(0, plan.order[:num_rows])


class BlockIndexer(Indexer):
    """V4's: one key a compression block, from a compressor of its own; the last dims turn."""

    def __init__(self, config: ModelConfig, numerics: Numerics, min_rows: int = 1) -> None:
        super().__init__(config, numerics, min_rows, "interleaved")
        self.compressor = Compressor(config, 4, self.dim)


class TokenIndexer(Indexer):
    """V3.2's: one key a token, a projection under a layer norm; the first dims turn, in halves."""

    def __init__(self, config: ModelConfig, numerics: Numerics, min_rows: int = 1) -> None:
        super().__init__(config, numerics, min_rows, "halves")
        self.wk = Linear(config.hidden_size, self.dim, numerics)
        self.k_norm = LayerNorm(self.dim, KEY_NORM_EPS)

    def key(self, raw: Tensor, rope: RopeTable) -> Tensor:
        """Keys [R, di] of the rows, from `wk`'s product."""
        return self.turned(self.k_norm(raw), rope)
