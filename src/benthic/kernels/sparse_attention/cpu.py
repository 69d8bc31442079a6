"""Attention over key tiles on the CPU: two library products, and a loop over rows between and after them.

The products have the shapes of the reference. Everything else follows the reference's order of operations: scores of
a row, their maximum with the sink, weights, sums of 64, the fold over blocks. Blocks that a row does not see are
skipped, which is exact: their weights are zeros.
"""

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import bytes8, float32s, kernel
from benthic.kernels.numba_math import LANES, exp32
from benthic.kernels.precision import wide
from benthic.kernels.sparse_attention.plan import BLOCK, WINDOW_BLOCKS
from benthic.kernels.sparse_attention.tiles import KeyTiles


def attend_tiles_cpu(
    query: Tensor, keys: Tensor, sink: Tensor, tiles: KeyTiles, scale: float, keep: Tensor | None
) -> Tensor:
    """Output [n*Q, H, d] of one group; see `sparse_attention`."""
    _, heads, dim = query.shape
    per_tile = tiles.rows_per_tile
    num_tiles, num_blocks = tiles.blocks.shape
    blocks = wide(keys.view(-1, BLOCK * dim).index_select(0, tiles.blocks.view(-1)))
    queries = wide(query.index_select(0, tiles.queries)).view(num_tiles, per_tile * heads, dim)
    scores = torch.bmm(queries, blocks.view(num_tiles, num_blocks * BLOCK, dim).transpose(1, 2))
    weights = torch.empty((num_tiles * num_blocks, per_tile * heads, BLOCK))
    denominator = torch.empty((num_tiles * per_tile, heads))
    sink = wide(sink).contiguous()
    kept = None if keep is None else keep.contiguous()
    _weigh(
        scores.data_ptr(),
        tiles.bias.data_ptr(),
        0 if kept is None else kept.data_ptr(),
        sink.data_ptr(),
        weights.data_ptr(),
        denominator.data_ptr(),
        num_tiles,
        per_tile,
        heads,
        num_blocks,
        scale,
    )
    if query.dtype != torch.float32:
        weights = wide(weights.to(query.dtype))
    partial = torch.bmm(weights, blocks.view(num_tiles * num_blocks, BLOCK, dim))
    output = torch.empty((num_tiles * per_tile, heads, dim))
    _fold(
        partial.data_ptr(),
        denominator.data_ptr(),
        output.data_ptr(),
        num_tiles,
        num_blocks,
        per_tile * heads,
        dim,
    )
    return output if query.dtype == torch.float32 else output.to(query.dtype)


@kernel
def _weigh(
    scores_at: int,
    bias_at: int,
    keep_at: int,
    sink_at: int,
    weights_at: int,
    denominator_at: int,
    num_tiles: int,
    per_tile: int,
    heads: int,
    num_blocks: int,
    scale: float,
) -> None:
    """Scores [n, Q*H, B*64] to weights [n, B, Q*H, 64] and denominators [n*Q, H]."""
    width = num_blocks * BLOCK
    entries = width - WINDOW_BLOCKS * BLOCK
    scores = float32s(scores_at, (num_tiles, per_tile, heads, width))
    bias = float32s(bias_at, (num_tiles, per_tile, width))
    sink = float32s(sink_at, (heads,))
    weights = float32s(weights_at, (num_tiles, num_blocks, per_tile * heads, BLOCK))
    denominator = float32s(denominator_at, (num_tiles, per_tile, heads))
    row_bias, lanes = np.empty(width, np.float32), np.empty(LANES, np.float32)
    seen, sums = np.empty(num_blocks, np.bool_), np.empty(num_blocks, np.float32)
    for tile in range(num_tiles):
        for place in range(per_tile):
            row_bias[:] = bias[tile, place]
            if keep_at:
                keep = bytes8(keep_at + (tile * per_tile + place) * entries, (entries,))
                hide(row_bias[WINDOW_BLOCKS * BLOCK :], keep)
            for block in range(num_blocks):
                seen[block] = (row_bias[block * BLOCK : (block + 1) * BLOCK] == 0).any()
            for head in range(heads):
                row = scores[tile, place, head]
                top = add_bias(row, row_bias, seen, np.float32(scale), sink[head], lanes)
                exponentiate(row, row_bias, seen, top, weights[tile], place * heads + head, sums, lanes)
                total = np.float32(0.0)
                for block in range(0, num_blocks, 4):
                    total += (sums[block] + sums[block + 1]) + (sums[block + 2] + sums[block + 3])
                denominator[tile, place, head] = total + exp32(sink[head] - top)


@kernel
def hide(bias, keep):  # type: ignore[no-untyped-def]
    for j in range(bias.size):
        if keep[j] == 0:
            bias[j] = np.float32(-np.inf)


@kernel
def add_bias(row, bias, seen, scale, sink, lanes):  # type: ignore[no-untyped-def]
    """Scales and masks a row's scores in place; returns their maximum with the sink."""
    lanes[:] = sink
    for block in range(seen.size):
        if seen[block]:
            for first in range(block * BLOCK, (block + 1) * BLOCK, LANES):
                for lane in range(LANES):
                    score = row[first + lane] * scale + bias[first + lane]
                    row[first + lane] = score
                    lanes[lane] = max(lanes[lane], score)
    top = lanes[0]
    for lane in range(LANES):
        top = max(top, lanes[lane])
    return top


@kernel
def exponentiate(row, bias, seen, top, weights, query, sums, lanes):  # type: ignore[no-untyped-def]
    """Weights [B, query, 64] of one row and head, and their sum in each block.

    Slices of one row each: only then does the compiler know their values to be adjacent.
    """
    for block in range(seen.size):
        target = weights[block, query]
        sums[block] = 0
        if not seen[block]:
            target[:] = 0
            continue
        scores, hidden = row[block * BLOCK : (block + 1) * BLOCK], bias[block * BLOCK : (block + 1) * BLOCK]
        for j in range(BLOCK):
            weight = exp32(scores[j] - top)
            target[j] = weight if hidden[j] == 0 else np.float32(0.0)
        sums[block] = _sum_block(target, lanes)


@kernel
def _sum_block(values, lanes):  # type: ignore[no-untyped-def]
    """Sum of 64 values: four to a lane, then the lanes in order."""
    for lane in range(LANES):
        lanes[lane] = (values[lane] + values[lane + 16]) + (values[lane + 32] + values[lane + 48])
    total = np.float32(0.0)
    for lane in range(LANES):
        total += lanes[lane]
    return total


@kernel
def _fold(
    partial_at: int, denominator_at: int, output_at: int, num_tiles: int, num_blocks: int, rows: int, dim: int
) -> None:
    """Partial sums [n, B, Q*H, d] to outputs [n, Q*H, d], blocks in fours from the left."""
    partial = float32s(partial_at, (num_tiles, num_blocks, rows, dim))
    denominator = float32s(denominator_at, (num_tiles, rows))
    output = float32s(output_at, (num_tiles, rows, dim))
    for tile in range(num_tiles):
        for row in range(rows):
            target = output[tile, row]
            target[:] = 0
            for block in range(0, num_blocks, 4):
                a, b = partial[tile, block, row], partial[tile, block + 1, row]
                c, d = partial[tile, block + 2, row], partial[tile, block + 3, row]
                for i in range(dim):
                    target[i] += (a[i] + b[i]) + (c[i] + d[i])
            divisor = denominator[tile, row]
            for i in range(dim):
                target[i] /= divisor
