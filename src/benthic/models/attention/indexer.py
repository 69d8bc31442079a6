"""The lightning indexer: which compressed entries a query reads (model.md 2.6)."""

from torch import Tensor, nn

from benthic.kernels.index_scores import index_scores
from benthic.kernels.select_topk import select_topk
from benthic.kernels.sparse_attention import TilePlan
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

    def keep(self, query: Tensor, gamma: Tensor, keys: Tensor, plan: TilePlan) -> list[Tensor | None]:
        """For each group of tiles the entries that stay, bool [n, Q, N]; None where all visible ones do."""
        keep: list[Tensor | None] = []
        for tiles in plan.groups:
            selects = tiles.max_visible > self.top_k
            scores = index_scores(query, gamma, keys, tiles, min_rows=self.min_rows) if selects else None
            keep.append(None if scores is None else select_topk(scores, self.top_k))
        return keep
