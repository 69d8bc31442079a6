"""Index scores on the CPU: one library product, then heads summed in order for all entries at once."""

import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, kernel
from benthic.kernels.numba_math import ZERO
from benthic.kernels.precision import wide
from benthic.kernels.sparse_attention.addresses import Blocks, IndexKeys, read_index_blocks
from benthic.kernels.sparse_attention.tiles import WINDOW_BLOCKS, KeyTiles
from benthic.kernels.sparse_attention.visibility_cpu import show_keys


def index_scores_cpu(query: Tensor, gamma: Tensor, keys: IndexKeys, tiles: KeyTiles, blocks: Blocks) -> Tensor:
    """See `index_scores`."""
    _, heads, dim = query.shape
    num_tiles, per_tile, (first, end) = tiles.num_tiles, tiles.rows_per_tile, blocks
    rows = wide(read_index_blocks(keys, tiles, blocks))
    queries = wide(query.index_select(0, tiles.queries)).view(num_tiles, per_tile * heads, dim)
    products = torch.bmm(queries, rows.transpose(1, 2))
    weights = wide(gamma.index_select(0, tiles.queries)).contiguous()
    scores = show_keys(tiles, (first + WINDOW_BLOCKS, end + WINDOW_BLOCKS), None)
    _sum_heads(
        products.data_ptr(), weights.data_ptr(), scores.data_ptr(), num_tiles * per_tile, heads, scores.shape[-1]
    )
    return scores


@kernel
def _sum_heads(products_at: int, weights_at: int, scores_at: int, rows: int, heads: int, width: int) -> None:
    """Adds sums over heads to `scores`, which hold 0 or -inf."""
    products = float32s(products_at, (rows, heads, width))
    weights = float32s(weights_at, (rows, heads))
    scores = float32s(scores_at, (rows, width))
    for row in range(rows):
        target = scores[row]
        for head in range(heads):
            weight, product = weights[row, head], products[row, head]
            for j in range(width):
                target[j] += max(product[j], ZERO) * weight
