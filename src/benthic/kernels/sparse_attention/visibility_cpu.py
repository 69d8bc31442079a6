"""Which keys the rows of a tile see, on the CPU: `addresses.hidden_keys` as one loop."""

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, int32s, int64s, kernel, part
from benthic.kernels.sparse_attention.addresses import Blocks
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles


def show_keys(tiles: KeyTiles, blocks: Blocks, picks: Tensor | None) -> Tensor:
    """0 where a key of those blocks is visible and picked, -inf elsewhere: float32 [n, Q, (end - first) * 64]."""
    first, end = blocks
    positions = tiles.positions.contiguous()
    kept = None if picks is None else picks.contiguous()
    bias = torch.empty((tiles.num_tiles, tiles.rows_per_tile, (end - first) * BLOCK))
    _show(
        positions.data_ptr(),
        0 if kept is None else kept.data_ptr(),
        bias.data_ptr(),
        positions.numel(),
        0 if kept is None else kept.shape[-1],
        first,
        end - first,
        tiles.window,
        tiles.window_blocks,
        tiles.ratio,
        picks is not None,
    )
    return bias


@kernel
def _show(
    positions_at: int,
    picks_at: int,
    bias_at: int,
    rows: int,
    num_picks: int,
    first_block: int,
    num_blocks: int,
    window: int,
    window_blocks: int,
    ratio: int,
    has_picks: bool,
) -> None:
    positions = int64s(positions_at, (rows,))
    picks = int32s(picks_at, (rows, num_picks))
    bias = float32s(bias_at, (rows, num_blocks * BLOCK))
    bias[:] = np.float32(-np.inf)
    for row in range(rows):
        position, target = positions[row], bias[row]
        # The window ends with the block of this position; entry w stands `window_blocks` blocks behind its number.
        origin = (position // BLOCK - (window_blocks - 1)) * BLOCK
        begin = max(position - window + 1, 0) - origin
        _reveal(target, begin - first_block * BLOCK, position + 1 - origin - first_block * BLOCK)
        if ratio == 0:
            continue
        limit, shift = (position + 1) // ratio, (window_blocks - first_block) * BLOCK
        if not has_picks:
            _reveal(target, shift, shift + limit)
            continue
        for i in range(num_picks):
            pick = picks[row, i]
            place = pick + shift
            if 0 <= pick < limit and 0 <= place < target.size:
                target[place] = 0


@part
def _reveal(target, begin, end):  # type: ignore[no-untyped-def]
    for place in range(max(begin, 0), min(end, target.size)):
        target[place] = 0
