"""Index scores on the CPU: a library product, then heads summed in order for many entries at once, piece by piece."""

from torch import Tensor

from benthic.kernels.numba_kernel import float32s, kernel
from benthic.kernels.numba_math import ZERO
from benthic.kernels.precision import wide
from benthic.kernels.sparse_attention.addresses import Blocks, IndexKeys, read_index_blocks
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles
from benthic.kernels.sparse_attention.visibility_cpu import show_keys

PRODUCT_BYTES = 1 << 20
"""Products worked on at once: what stays in a core's cache between the library and the sum over heads."""


def index_scores_cpu(query: Tensor, gamma: Tensor, keys: IndexKeys, tiles: KeyTiles, blocks: Blocks) -> Tensor:
    """See `index_scores`."""
    _, heads, dim = query.shape
    num_tiles, per_tile, (first, end) = tiles.num_tiles, tiles.rows_per_tile, blocks
    rows = wide(read_index_blocks(keys, tiles, blocks))
    queries = wide(query.index_select(0, tiles.queries)).view(num_tiles, per_tile * heads, dim)
    weights = wide(gamma.index_select(0, tiles.queries)).contiguous()
    scores = show_keys(tiles, (first + tiles.window_blocks, end + tiles.window_blocks), None)
    piece = max(1, PRODUCT_BYTES // (4 * per_tile * heads * BLOCK)) * BLOCK
    for tile in range(num_tiles):
        for column in range(0, rows.shape[1], piece):
            products = queries[tile] @ rows[tile, column : column + piece].t()
            _sum_heads(
                products.data_ptr(),
                weights.data_ptr() + 4 * tile * per_tile * heads,
                scores.data_ptr() + 4 * tile * per_tile * scores.shape[-1],
                per_tile,
                heads,
                products.shape[-1],
                column,
                scores.shape[-1],
            )
    return scores


@kernel
def _sum_heads(
    products_at: int, weights_at: int, scores_at: int, rows: int, heads: int, count: int, column: int, width: int
) -> None:
    """Adds sums over heads to columns column .. column + count - 1 of a tile's scores, which hold 0 or -inf."""
    products = float32s(products_at, (rows, heads, count))
    weights = float32s(weights_at, (rows, heads))
    scores = float32s(scores_at, (rows, width))
    for row in range(rows):
        target = scores[row, column : column + count]
        for head in range(heads):
            weight, product = weights[row, head], products[row, head]
            for j in range(count):
                target[j] += max(product[j], ZERO) * weight
