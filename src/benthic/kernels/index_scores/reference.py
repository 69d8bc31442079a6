"""The meaning of the indexer's score (model.md 2.6 step 5): sum_h gamma_h * relu(iq_h . ik_w)."""

import torch
from torch import Tensor

from benthic.kernels.precision import product_dtype, wide
from benthic.kernels.sparse_attention.addresses import Blocks, IndexKeys, hidden_keys, read_index_blocks
from benthic.kernels.sparse_attention.tiles import KeyTiles


def index_scores_ref(query: Tensor, gamma: Tensor, keys: IndexKeys, tiles: KeyTiles, blocks: Blocks) -> Tensor:
    """Scores of one group; see `index_scores`."""
    _, heads, dim = query.shape
    exact = product_dtype(query)
    rows = read_index_blocks(keys, tiles, blocks).to(exact)
    q = query.index_select(0, tiles.queries).to(exact).view(tiles.num_tiles, -1, dim)
    products = wide(torch.bmm(q, rows.transpose(1, 2)))
    products = products.view(tiles.num_tiles, tiles.rows_per_tile, heads, -1).relu()
    weight = wide(gamma).index_select(0, tiles.queries).view(tiles.num_tiles, tiles.rows_per_tile, heads, 1)
    scores = (products * weight).sum(2)
    first, end = blocks
    return scores + hidden_keys(tiles, (first + tiles.window_blocks, end + tiles.window_blocks), None).to(scores.dtype)
