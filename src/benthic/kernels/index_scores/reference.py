"""The meaning of the indexer's score (model.md 2.6 step 5): sum_h gamma_h * relu(iq_h . ik_w)."""

import torch
from torch import Tensor

from benthic.kernels.precision import product_dtype, wide
from benthic.kernels.sparse_attention.plan import BLOCK, WINDOW_BLOCKS
from benthic.kernels.sparse_attention.tiles import KeyTiles


def index_scores_ref(query: Tensor, gamma: Tensor, keys: Tensor, tiles: KeyTiles) -> Tensor:
    """Scores of one group; see `index_scores`."""
    _, heads, dim = query.shape
    assert tiles.entry_blocks is not None
    num_tiles, num_blocks = tiles.entry_blocks.shape
    exact = product_dtype(query)
    blocks = keys.view(-1, BLOCK * dim).index_select(0, tiles.entry_blocks.view(-1)).to(exact)
    q = query.index_select(0, tiles.queries).to(exact).view(num_tiles, -1, dim)
    products = wide(torch.bmm(q, blocks.view(num_tiles, -1, dim).transpose(1, 2)))
    products = products.view(num_tiles, tiles.rows_per_tile, heads, -1).relu()
    weight = wide(gamma).index_select(0, tiles.queries).view(num_tiles, tiles.rows_per_tile, heads, 1)
    scores = (products * weight).sum(2)
    return scores + tiles.bias[:, :, 0, WINDOW_BLOCKS * BLOCK :].to(scores.dtype)
