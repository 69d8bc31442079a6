"""Index scores of single rows on the CPU: the keys that a row sees, read where they lie, without products.

A score of one head is the chain of `sparse_attention.chains_cpu`, heads are summed in order: the bits of `cpu.py`
where the library forms its products as such chains.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.kv_storage.rows_cpu import IndexSource, index_source, read_index
from benthic.kernels.numba_kernel import float32s, int64s, kernel, part
from benthic.kernels.numba_math import ZERO
from benthic.kernels.sparse_attention.addresses import Blocks, IndexKeys
from benthic.kernels.sparse_attention.chains_cpu import HEADS, chain_len, score_block
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles


def index_single_rows(query: Tensor, gamma: Tensor, keys: IndexKeys, tiles: KeyTiles, blocks: Blocks) -> Tensor:
    """See `index_scores`; one-row tiles, all float32."""
    _, heads, dim = query.shape
    query, gamma = query.contiguous(), gamma.contiguous()
    source, buffer = index_source(keys)
    queries, positions, sequence = (x.contiguous() for x in (tiles.queries, tiles.positions, tiles.sequence))
    table = tiles.entry_table
    assert table is not None, "a layer of ratio 0 has no entries"
    first, end = blocks
    scores = torch.full((tiles.num_tiles, 1, (end - first) * BLOCK), -torch.inf)
    _score(
        query.data_ptr(),
        gamma.data_ptr(),
        source,
        scores.data_ptr(),
        (queries.data_ptr(), positions.data_ptr(), sequence.data_ptr()),
        (table.data_ptr(), table.shape[1], tiles.entry_page, tiles.ratio),
        (tiles.num_tiles, heads, dim),
        first * BLOCK,
        end * BLOCK,
        chain_len(dim, torch.get_num_threads()),
    )
    return scores


@kernel
def _score(
    query_at: int,
    gamma_at: int,
    keys_at: IndexSource,
    scores_at: int,
    rows_at: tuple[int, int, int],
    entries_at: tuple[int, int, int, int],
    sizes: tuple[int, int, int],
    first: int,
    end: int,
    run: int,
) -> None:
    """Scores entries first .. end - 1. `rows_at`: addresses of rows, positions, sequences [n]."""
    num_tiles, heads, dim = sizes
    table_at, pages, page, ratio = entries_at
    rows, positions = int64s(rows_at[0], (num_tiles,)), int64s(rows_at[1], (num_tiles,))
    sequences, scores = int64s(rows_at[2], (num_tiles,)), float32s(scores_at, (num_tiles, end - first))
    vectors, turned = np.empty((BLOCK, dim), np.float32), np.zeros(dim * BLOCK, np.float32)
    products, totals = np.empty((heads, BLOCK), np.float32), np.empty(HEADS * BLOCK, np.float32)
    for tile in range(num_tiles):
        table = int64s(table_at + 8 * sequences[tile] * pages, (pages,))
        queries = float32s(query_at + 4 * rows[tile] * heads * dim, (heads, dim))
        gamma = float32s(gamma_at + 4 * rows[tile] * heads, (heads,))
        visible = min((positions[tile] + 1) // ratio, end)
        for begin in range(first, visible, BLOCK):
            count = min(BLOCK, visible - begin)
            for i in range(count):
                slot = table[(begin + i) // page] * page + (begin + i) % page
                read_index(keys_at, slot, vectors[i])
            score_block(queries, vectors[:count], turned, totals, products, np.int64(0), run)
            _sum_heads(products[:, :count], gamma, scores[tile, begin - first : begin - first + count])


@part
def _sum_heads(products: Any, gamma: Any, target: Any) -> None:
    target[:] = 0
    for head in range(gamma.size):
        weight, product = gamma[head], products[head]
        for j in range(target.size):
            target[j] += max(product[j], ZERO) * weight
