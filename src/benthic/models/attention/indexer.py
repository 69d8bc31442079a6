"""The lightning indexer: which compressed entries a query reads (model.md 2.6)."""

import torch
from torch import Tensor, nn

from benthic.kernels.index_scores import all_visible, pick_entries
from benthic.kernels.sparse_attention import IndexKeys, TilePlan
from benthic.models.attention.compressor import Compressor
from benthic.models.config import ModelConfig
from benthic.models.linear import Linear
from benthic.models.numerics import Numerics


class Indexer(nn.Module):
    """Scores entries with its own small heads and keys, and keeps the best `index_topk`."""

    def __init__(self, config: ModelConfig, numerics: Numerics, min_rows: int = 1) -> None:
        super().__init__()
        self.heads, self.dim, self.top_k = config.index_n_heads, config.index_head_dim, config.index_topk
        self.wq_b = Linear(config.q_lora_rank, self.heads * self.dim, numerics)
        self.weights_proj = Linear(config.hidden_size, self.heads)
        self.compressor = Compressor(config, 4, self.dim)
        self.gamma_scale = self.dim**-0.5 * self.heads**-0.5
        self.min_rows = min_rows

    def picks(
        self, query: Tensor, gamma: Tensor, keys: IndexKeys, plan: TilePlan, workspace_bytes: int
    ) -> list[Tensor | None]:
        """For each group of tiles the entries that stay, int32 [n, Q, k]; None where all visible ones do."""
        return [
            pick_entries(query, gamma, keys, tiles, self.top_k, min_rows=self.min_rows, workspace_bytes=workspace_bytes)
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
