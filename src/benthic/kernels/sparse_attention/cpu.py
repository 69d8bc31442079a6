"""Attention over key tiles on the CPU: two library products, and a loop over rows between and after them.

The products have the shapes of the reference. Everything else follows the reference's order of operations: scores of
a row, their maximum with the sink, weights, sums of 64, the fold over blocks. Blocks that a row does not see are
skipped, which is exact: their weights are zeros.
"""

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.numba_kernel import float32s, int64s, kernel, part
from benthic.kernels.numba_math import LANES, exp32
from benthic.kernels.precision import wide
from benthic.kernels.sparse_attention.addresses import Keys, read_blocks
from benthic.kernels.sparse_attention.reference import pieces_of
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles
from benthic.kernels.sparse_attention.visibility_cpu import show_keys
from benthic.kernels.sparse_attention.workspace import CACHED_BYTES


def attend_tiles_cpu(
    query: Tensor,
    keys: Keys,
    sink: Tensor,
    tiles: KeyTiles,
    scale: float,
    picks: Tensor | None,
    value_dim: int,
    piece: int,
) -> Tensor:
    """Output [n*Q, H, dv] of one group, `piece` key blocks at a time; see `sparse_attention`."""
    _, heads, dim = query.shape
    per_tile, num_tiles = tiles.rows_per_tile, tiles.num_tiles
    rows = per_tile * heads
    queries = wide(query.index_select(0, tiles.queries)).view(num_tiles, rows, dim)
    sink = wide(sink).contiguous()
    top = sink.repeat(num_tiles * per_tile, 1)
    denominator = torch.zeros((num_tiles * per_tile, heads))
    output = torch.zeros((num_tiles * per_tile, heads, value_dim))
    used = tiles.used.contiguous()
    cuts = pieces_of(tiles.num_blocks, piece)
    passes = (True,) if len(cuts) == 1 else (False, True)
    for weighs in passes:
        for cut in cuts:
            num_blocks = cut[1] - cut[0]
            blocks = wide(read_blocks(keys, tiles, cut))
            scores = torch.bmm(queries, blocks.transpose(1, 2))
            bias = show_keys(tiles, cut, picks)
            weights = torch.empty((num_tiles * num_blocks, rows, BLOCK) if weighs else (0,))
            _weigh(
                scores.data_ptr(),
                bias.data_ptr(),
                used.data_ptr(),
                top.data_ptr(),
                weights.data_ptr(),
                denominator.data_ptr(),
                num_tiles,
                per_tile,
                heads,
                num_blocks,
                scale,
                weighs,
            )
            if not weighs:
                continue
            del scores
            if query.dtype != torch.float32:
                weights = wide(weights.to(query.dtype))
            _add_values(weights, blocks.view(num_tiles * num_blocks, BLOCK, dim)[..., :value_dim], output, num_tiles)
    _divide(
        top.data_ptr(),
        sink.data_ptr(),
        denominator.data_ptr(),
        output.data_ptr(),
        num_tiles * per_tile,
        heads,
        value_dim,
    )
    return output if query.dtype == torch.float32 else output.to(query.dtype)


def _add_values(weights: Tensor, values: Tensor, output: Tensor, num_tiles: int) -> None:
    """Adds weights [n * p, Q*H, 64] times values [n * p, 64, dv] to outputs [n*Q, H, dv], some blocks at a time."""
    count, rows, _ = weights.shape
    num_blocks, width = count // num_tiles, values.shape[-1]
    few = max(4, CACHED_BYTES // (4 * rows * width) // 4 * 4)
    if few >= count:
        partial = torch.bmm(weights, values)
        _fold(partial.data_ptr(), output.data_ptr(), num_tiles, num_blocks, rows, width)
        return
    buffer = torch.empty((min(few, num_blocks), rows, width))
    for tile in range(num_tiles):
        target = output.data_ptr() + 4 * tile * rows * width
        for first in range(tile * num_blocks, (tile + 1) * num_blocks, few):
            end = min(first + few, (tile + 1) * num_blocks)
            partial = torch.bmm(weights[first:end], values[first:end], out=buffer[: end - first])
            _fold(partial.data_ptr(), target, 1, end - first, rows, width)


@kernel
def _weigh(
    scores_at: int,
    bias_at: int,
    used_at: int,
    top_at: int,
    weights_at: int,
    denominator_at: int,
    num_tiles: int,
    per_tile: int,
    heads: int,
    num_blocks: int,
    scale: float,
    weighs: bool,
) -> None:
    """Raises maxima [n*Q, H] by scores [n, Q*H, p*64]; then weights [n, p, Q*H, 64], added to denominators [n*Q, H]."""
    width = num_blocks * BLOCK
    scores = float32s(scores_at, (num_tiles, per_tile, heads, width))
    bias = float32s(bias_at, (num_tiles, per_tile, width))
    used = int64s(used_at, (num_tiles,))
    tops = float32s(top_at, (num_tiles, per_tile, heads))
    weights = float32s(weights_at, (num_tiles, num_blocks, per_tile * heads, BLOCK))
    denominator = float32s(denominator_at, (num_tiles, per_tile, heads))
    lanes = np.empty(LANES, np.float32)
    seen, sums = np.empty(num_blocks, np.bool_), np.empty(num_blocks, np.float32)
    for tile in range(num_tiles):
        for place in range(per_tile):
            row_bias = bias[tile, place]
            if place >= used[tile]:
                if weighs:
                    weights[tile, :, place * heads : (place + 1) * heads] = 0
                continue
            for block in range(num_blocks):
                seen[block] = False
                for j in range(block * BLOCK, (block + 1) * BLOCK):
                    seen[block] |= row_bias[j] == 0
            for head in range(heads):
                row = scores[tile, place, head]
                top = _add_bias(row, row_bias, seen, np.float32(scale), tops[tile, place, head], lanes)
                tops[tile, place, head] = top
                if not weighs:
                    continue
                _exponentiate(row, row_bias, seen, top, weights[tile], place * heads + head, sums, lanes)
                total = denominator[tile, place, head]
                for block in range(0, num_blocks, 4):
                    total += (sums[block] + sums[block + 1]) + (sums[block + 2] + sums[block + 3])
                denominator[tile, place, head] = total


@part
def _add_bias(row, bias, seen, scale, top, lanes):  # type: ignore[no-untyped-def]
    """Scales and masks a row's scores in place; returns their maximum with `top`."""
    lanes[:] = top
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


@part
def _exponentiate(row, bias, seen, top, weights, query, sums, lanes):  # type: ignore[no-untyped-def]
    """Weights [p, query, 64] of one row and head, and their sum in each block.

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
        sums[block] = sum_block(target, lanes)


@part
def sum_block(values, lanes):  # type: ignore[no-untyped-def]
    """Sum of 64 values: four to a lane, then the lanes in order."""
    for lane in range(LANES):
        lanes[lane] = (values[lane] + values[lane + 16]) + (values[lane + 32] + values[lane + 48])
    total = np.float32(0.0)
    for lane in range(LANES):
        total += lanes[lane]
    return total


@kernel
def _fold(partial_at: int, output_at: int, num_tiles: int, num_blocks: int, rows: int, dim: int) -> None:
    """Adds partial sums [n, p, Q*H, d] to outputs [n, Q*H, d], blocks in fours from the left."""
    partial = float32s(partial_at, (num_tiles, num_blocks, rows, dim))
    output = float32s(output_at, (num_tiles, rows, dim))
    for tile in range(num_tiles):
        for row in range(rows):
            target = output[tile, row]
            for block in range(0, num_blocks, 4):
                a, b = partial[tile, block, row], partial[tile, block + 1, row]
                c, d = partial[tile, block + 2, row], partial[tile, block + 3, row]
                for i in range(dim):
                    target[i] += (a[i] + b[i]) + (c[i] + d[i])


@kernel
def _divide(top_at: int, sink_at: int, denominator_at: int, output_at: int, rows: int, heads: int, dim: int) -> None:
    """Divides outputs [rows, H, d] by denominators [rows, H], the sink's share added."""
    top, sink = float32s(top_at, (rows, heads)), float32s(sink_at, (heads,))
    denominator, output = float32s(denominator_at, (rows, heads)), float32s(output_at, (rows, heads, dim))
    for row in range(rows):
        for head in range(heads):
            divisor = denominator[row, head] + exp32(sink[head] - top[row, head])
            target = output[row, head]
            for i in range(dim):
                target[i] /= divisor
