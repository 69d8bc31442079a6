"""Index scores on the CPU: one library product, then heads summed in order for all entries at once."""

import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, kernel
from benthic.kernels.numba_math import ZERO
from benthic.kernels.precision import wide
from benthic.kernels.sparse_attention.plan import BLOCK, WINDOW_BLOCKS
from benthic.kernels.sparse_attention.tiles import KeyTiles


def index_scores_cpu(query: Tensor, gamma: Tensor, keys: Tensor, tiles: KeyTiles) -> Tensor:
    """See `index_scores`."""
    _, heads, dim = query.shape
    assert tiles.entry_blocks is not None
    num_tiles, num_blocks = tiles.entry_blocks.shape
    per_tile, width = tiles.rows_per_tile, num_blocks * BLOCK
    blocks = wide(keys.view(-1, BLOCK * dim).index_select(0, tiles.entry_blocks.view(-1)))
    queries = wide(query.index_select(0, tiles.queries)).view(num_tiles, per_tile * heads, dim)
    products = torch.bmm(queries, blocks.view(num_tiles, width, dim).transpose(1, 2))
    weights = wide(gamma.index_select(0, tiles.queries)).contiguous()
    scores = torch.empty((num_tiles, per_tile, width))
    _sum_heads(
        products.data_ptr(),
        weights.data_ptr(),
        tiles.bias.data_ptr(),
        scores.data_ptr(),
        num_tiles * per_tile,
        heads,
        width,
        WINDOW_BLOCKS * BLOCK,
    )
    return scores


@kernel
def _sum_heads(
    products_at: int, weights_at: int, bias_at: int, scores_at: int, rows: int, heads: int, width: int, skipped: int
) -> None:
    products = float32s(products_at, (rows, heads, width))
    weights = float32s(weights_at, (rows, heads))
    bias = float32s(bias_at, (rows, skipped + width))
    scores = float32s(scores_at, (rows, width))
    for row in range(rows):
        target = scores[row]
        target[:] = 0
        for head in range(heads):
            weight, product = weights[row, head], products[row, head]
            for j in range(width):
                target[j] += max(product[j], ZERO) * weight
        target += bias[row, skipped:]
