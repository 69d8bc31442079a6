"""Attention of rows one by one on the CPU (decode, short verifications, sparse choices): only keys that a row sees.

Every score and every weighted sum is one chain of fused multiply-adds in ascending order of its terms, which is how
a library forms them for tiles of many rows. A key that is not visible has weight 0 there and adds an exact zero, so
leaving it out leaves the bits. `chain_len` checks the chains on this machine; where they do not hold, single rows
take the library's products too.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.kv_storage.rows_cpu import KvSource, kv_source, read_kv
from benthic.kernels.numba_kernel import float32s, inlined, int32s, int64s, kernel, part
from benthic.kernels.numba_math import LANES, ZERO, exp32
from benthic.kernels.sparse_attention.addresses import Keys
from benthic.kernels.sparse_attention.chains_cpu import HEADS, add_chains, chain_len, clear, four_rows, score_block
from benthic.kernels.sparse_attention.cpu import sum_block
from benthic.kernels.sparse_attention.tiles import BLOCK, KeyTiles


def attend_single_rows(
    query: Tensor, keys: Keys, sink: Tensor, tiles: KeyTiles, scale: float, picks: Tensor | None, value_dim: int
) -> Tensor:
    """Output [n*Q, H, dv] of one group, row by row; all float32. See `sparse_attention`."""
    _, heads, dim = query.shape
    query, sink = query.contiguous(), sink.contiguous()
    source, buffer = kv_source(keys)
    queries, positions = tiles.queries.contiguous(), tiles.positions.contiguous()
    used, sequence = tiles.used.contiguous(), tiles.sequence.contiguous()
    entries, kept = tiles.entry_table, None if picks is None else picks.contiguous()
    num_picks = -1 if kept is None else kept.shape[-1]
    most = tiles.window + (tiles.max_visible if kept is None else num_picks)
    output = torch.empty((len(queries), heads, value_dim), dtype=torch.float32)
    _attend(
        query.data_ptr(),
        source,
        sink.data_ptr(),
        output.data_ptr(),
        (queries.data_ptr(), positions.data_ptr(), used.data_ptr(), sequence.data_ptr()),
        (
            tiles.window_table.data_ptr(),
            tiles.window_table.shape[1],
            tiles.window_page,
            tiles.window,
            tiles.window_blocks,
        ),
        (0, 0, 1, 0, 0)
        if entries is None
        else (entries.data_ptr(), entries.shape[1], tiles.entry_page, tiles.entry_base, tiles.ratio),
        (0 if kept is None else kept.data_ptr(), num_picks),
        (tiles.num_tiles, tiles.rows_per_tile, heads, dim, value_dim, most),
        chain_len(dim, torch.get_num_threads(), value_dim),
        scale,
    )
    return output


@kernel
def _attend(
    query_at: int,
    keys_at: KvSource,
    sink_at: int,
    output_at: int,
    rows_at: tuple[int, int, int, int],
    window_at: tuple[int, int, int, int, int],
    entries_at: tuple[int, int, int, int, int],
    picks_at: tuple[int, int],
    sizes: tuple[int, int, int, int, int, int],
    run: int,
    scale: float,
) -> None:
    """`rows_at`: addresses of rows and positions [n*Q], used places and sequences [n]; then a table's address, rule."""
    num_tiles, per_tile, heads, dim, value_dim, most = sizes
    places_all = num_tiles * per_tile
    rows, positions = int64s(rows_at[0], (places_all,)), int64s(rows_at[1], (places_all,))
    used, sequences = int64s(rows_at[2], (num_tiles,)), int64s(rows_at[3], (num_tiles,))
    sink, output = float32s(sink_at, (heads,)), float32s(output_at, (places_all, heads, value_dim))
    slots, places, ends = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    vectors = np.empty((most, dim), np.float32)
    scores = np.empty((heads, (most + BLOCK - 1) // BLOCK * BLOCK), np.float32)
    turned, totals = np.zeros(dim * BLOCK, np.float32), np.empty((4, HEADS * BLOCK), np.float32)
    scratch, lanes, tops = np.empty(BLOCK, np.float32), np.empty(LANES, np.float32), np.empty(heads, np.float32)
    for number in range(places_all):
        tile = number // per_tile
        if number % per_tile >= used[tile]:
            output[number] = 0
            continue
        count = _list_keys(positions[number], sequences[tile], number, window_at, entries_at, picks_at, slots, places)
        num_segments = _cut_blocks(places[:count], ends)
        for i in range(count):
            read_kv(keys_at, slots[i], vectors[i])
        queries = float32s(query_at + 4 * rows[number] * heads * dim, (heads, dim))
        for first in range(0, count, BLOCK):
            score_block(queries, vectors[first : min(first + BLOCK, count)], turned, totals[0], scores, first, run)
        for head in range(heads):
            tops[head] = _exponentiate(scores[head], count, np.float32(scale), sink[head], lanes)
        _sum_values(scores, places, ends[:num_segments], vectors, totals, output[number])
        for head in range(heads):
            total = _sum_weights(scores[head], places, ends[:num_segments], scratch, lanes)
            divisor, target = total + exp32(sink[head] - tops[head]), output[number, head]
            for i in range(value_dim):
                target[i] /= divisor


@part
def _list_keys(
    position: int, sequence: int, number: int, window_at: Any, entries_at: Any, picks_at: Any, slots: Any, places: Any
) -> int:
    """Slots of the keys that a row sees, and their places among its blocks, ascending. Returns how many."""
    table_at, pages, page, window, window_blocks = window_at
    table = int64s(table_at + 8 * sequence * pages, (pages,))
    origin, count = (position // BLOCK - (window_blocks - 1)) * BLOCK, 0
    for key in range(max(position - window + 1, 0), position + 1):
        slots[count] = table[key // page] * page + key % page
        places[count] = key - origin
        count += 1
    table_at, pages, page, base, ratio = entries_at
    if ratio == 0:
        return count
    picked_at, num_picks = picks_at
    table = int64s(table_at + 8 * sequence * pages, (pages,))
    picks = int32s(picked_at + 4 * number * max(num_picks, 0), (max(num_picks, 0),))
    limit = (position + 1) // ratio
    for i in range(limit if num_picks < 0 else num_picks):
        entry = i if num_picks < 0 else picks[i]
        if 0 <= entry < limit:
            slots[count] = base + table[entry // page] * page + entry % page
            places[count] = window_blocks * BLOCK + entry
            count += 1
    return count


@part
def _cut_blocks(places: Any, ends: Any) -> int:
    """Ends of the runs of places inside one block; returns how many there are."""
    count = 0
    for i in range(places.size):
        if i + 1 == places.size or places[i] // BLOCK != places[i + 1] // BLOCK:
            ends[count] = i + 1
            count += 1
    return count


@part
def _exponentiate(row: Any, count: int, scale: Any, sink: Any, lanes: Any) -> Any:
    """The first `count` scores to weights in place; returns the maximum of the scaled scores and the sink."""
    lanes[:] = sink
    whole = count // LANES * LANES
    for first in range(0, whole, LANES):
        for lane in range(LANES):
            score = row[first + lane] * scale
            row[first + lane] = score
            lanes[lane] = max(lanes[lane], score)
    for j in range(whole, count):
        row[j] *= scale
        lanes[0] = max(lanes[0], row[j])
    top = lanes[0]
    for lane in range(LANES):
        top = max(top, lanes[lane])
    for j in range(count):
        row[j] = exp32(row[j] - top)
    return top


@part
def _sum_values(weights: Any, places: Any, ends: Any, vectors: Any, totals: Any, target: Any) -> None:
    """target[h] = the weighted sum of the vectors' first values: chains in blocks, blocks folded in fours.

    `totals` [4, 4 * 64] is scratch: a block of the four, a head, 64 values.
    """
    heads, value_dim = target.shape
    for head in range(heads):
        clear(target[head])
    segment = np.int64(0)
    while segment < ends.size:
        begin = ends[segment - 1] if segment else np.int64(0)
        four = places[begin] // (4 * BLOCK)
        stop = segment + 1
        while stop < ends.size and places[ends[stop - 1]] // (4 * BLOCK) == four:
            stop += 1
        for head in range(0, heads, HEADS):
            for first in range(0, value_dim, BLOCK):
                width = min(BLOCK, value_dim - first)
                _sum_four_blocks(weights, head, places, ends, segment, stop, vectors, first, width, totals)
                for offset in range(min(HEADS, heads - head)):
                    _fold_four(totals, offset * BLOCK, target[head + offset, first : first + width])
        segment = stop


@part
def _sum_four_blocks(
    weights: Any,
    head: int,
    places: Any,
    ends: Any,
    segment: int,
    stop: int,
    vectors: Any,
    first: int,
    width: int,
    totals: Any,
) -> None:
    """Sums of values first .. first + width - 1 for four heads in each block of a four; zeros for absent blocks."""
    dim, flat = vectors.shape[1], vectors.reshape(-1)
    for k in range(4):
        clear(totals[k])
    for number in range(segment, stop):
        begin = ends[number - 1] if number else np.int64(0)
        rows = four_rows(weights, head, begin, ends[number])
        add_chains(rows, flat[begin * dim + first :], dim, width, totals[places[begin] // BLOCK % 4])


@part
def _sum_weights(weights: Any, places: Any, ends: Any, scratch: Any, lanes: Any) -> Any:
    """Sum of one head's weights, by blocks folded in fours."""
    total, begin, segment = ZERO, 0, 0
    while segment < ends.size:
        four = places[begin] // (4 * BLOCK)
        sums = (ZERO, ZERO, ZERO, ZERO)
        while segment < ends.size and places[begin] // (4 * BLOCK) == four:
            end = ends[segment]
            k = places[begin] // BLOCK % 4
            sums = _with(sums, k, _sum_scattered(weights[begin:end], places[begin:end], scratch, lanes))
            begin, segment = end, segment + 1
        total += (sums[0] + sums[1]) + (sums[2] + sums[3])
    return total


@inlined
def _with(sums: Any, k: int, value: Any) -> Any:
    """The four sums with number k replaced."""
    a, b, c, d = sums
    return value if k == 0 else a, value if k == 1 else b, value if k == 2 else c, value if k == 3 else d


@part
def _sum_scattered(weights: Any, places: Any, scratch: Any, lanes: Any) -> Any:
    """Sum of a block's 64 weights, zeros for keys that are not listed."""
    for i in range(BLOCK):
        scratch[i] = 0
    first = places[0] % BLOCK
    if places[places.size - 1] - places[0] == places.size - 1:
        run = scratch[first : first + weights.size]
        for i in range(weights.size):
            run[i] = weights[i]
    else:
        for i in range(weights.size):
            scratch[places[i] % BLOCK] = weights[i]
    return sum_block(scratch, lanes)


@inlined
def _fold_four(totals: Any, at: int, target: Any) -> None:
    size = target.size
    a, b, c, d = (
        totals[0, at : at + size],
        totals[1, at : at + size],
        totals[2, at : at + size],
        totals[3, at : at + size],
    )
    for i in range(size):
        target[i] += (a[i] + b[i]) + (c[i] + d[i])
