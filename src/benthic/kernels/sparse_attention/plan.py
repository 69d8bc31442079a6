"""From the chunks of a pass and the block tables of its sequences to query tiles. Host arithmetic, once a pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from benthic.kernels.sparse_attention.tiles import KeyTiles, TilePlan

BLOCK = 64
"""Keys in a block: the unit in which scores are grouped and partial sums are folded."""

Ints = npt.NDArray[np.int64]


class ChunkLike(Protocol):
    """A run of consecutive positions of one sequence (models.context.Chunk)."""

    @property
    def sequence(self) -> int: ...
    @property
    def start_row(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def length(self) -> int: ...


@dataclass(frozen=True, slots=True)
class BlockTables:
    """Where the keys of each sequence lie.

    `window[s, b]` is the block of the kv buffer that holds positions 64b .. 64b+63 of sequence s (any value where the
    window no longer reaches). `entries[ratio][s, b]` likewise for compressed entries 64b .. 64b+63;
    `index_entries[s, b]` the block of the indexer's key buffer (ratio 4). Rows are addressed by `Chunk.sequence`.
    """

    window: Ints
    entries: Mapping[int, Ints]
    index_entries: Ints | None


def plan_tiles(
    chunks: Sequence[ChunkLike],
    tables: BlockTables,
    ratios: Sequence[int],
    *,
    window: int,
    num_rows: int,
    device: torch.device,
    tiles_per_group: int = 4,
) -> dict[int, TilePlan]:
    """Plans one pass.

    Args:
        chunks: the runs of rows of the pass.
        tables: block tables of their sequences.
        ratios: the compression ratios that occur in the model (0 for window-only layers).
        window: sliding window W in tokens; at most 128, so that three aligned blocks cover it.
        num_rows: rows of the pass including dummies.
        tiles_per_group: how many 64-row tiles share one product (a trade of memory against calls; never of bits).

    Returns:
        A plan for each ratio.
    """
    assert window <= 2 * BLOCK, f"a window of {window} needs more than three aligned blocks of {BLOCK}"
    groups = _group(_cut(chunks), tiles_per_group)
    order = torch.from_numpy(_order(groups, num_rows)).to(device)
    return {
        ratio: TilePlan(tuple(_key_tiles(group, tables, ratio, window, device) for group in groups), order)
        for ratio in ratios
    }


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Host side of one group: `rows`, `positions` int64 [n, Q]; `used` [n] real rows; `sequence`, `block` [n]."""

    rows: Ints
    positions: Ints
    used: Ints
    sequence: Ints
    block: Ints


def _cut(chunks: Sequence[ChunkLike]) -> tuple[_Tiles | None, _Tiles | None]:
    """Single rows, and runs cut at aligned blocks of 64 positions."""
    single: list[tuple[int, int, int, int]] = []
    runs: list[tuple[int, int, int, int]] = []
    for chunk in chunks:
        if chunk.length == 1:
            single.append((chunk.sequence, chunk.start_row, chunk.start, 1))
            continue
        position, end = chunk.start, chunk.start + chunk.length
        while position < end:
            stop = min(end, (position // BLOCK + 1) * BLOCK)
            runs.append((chunk.sequence, chunk.start_row + position - chunk.start, position, stop - position))
            position = stop
    return _tiles(single, 1), _tiles(runs, BLOCK)


def _tiles(pieces: list[tuple[int, int, int, int]], rows_per_tile: int) -> _Tiles | None:
    if not pieces:
        return None
    sequence, row, position, used = np.array(pieces, dtype=np.int64).T
    offset = np.arange(rows_per_tile, dtype=np.int64)
    offset = np.where(offset < used[:, None], offset, 0)
    return _Tiles(row[:, None] + offset, position[:, None] + offset, used, sequence, position // BLOCK)


def _group(cut: tuple[_Tiles | None, _Tiles | None], tiles_per_group: int) -> list[_Tiles]:
    single, runs = cut
    groups = [single] if single is not None else []
    if runs is not None:
        for first in range(0, len(runs.used), tiles_per_group):
            part = slice(first, first + tiles_per_group)
            groups.append(
                _Tiles(runs.rows[part], runs.positions[part], runs.used[part], runs.sequence[part], runs.block[part])
            )
    return groups


def _order(groups: list[_Tiles], num_rows: int) -> Ints:
    order = np.zeros(num_rows, dtype=np.int64)
    base = 0
    for group in groups:
        tiles, rows_per_tile = group.rows.shape
        real = np.arange(rows_per_tile) < group.used[:, None]
        places = base + np.arange(tiles * rows_per_tile, dtype=np.int64).reshape(tiles, rows_per_tile)
        order[group.rows[real]] = places[real]
        base += tiles * rows_per_tile
    return order


def _key_tiles(group: _Tiles, tables: BlockTables, ratio: int, window: int, device: torch.device) -> KeyTiles:
    tiles, rows_per_tile = group.rows.shape
    window_block = group.block[:, None] + np.arange(-2, 1)
    blocks = tables.window[group.sequence[:, None], np.maximum(window_block, 0)]
    last = group.positions.max(axis=1)
    max_visible = int((last.max() + 1) // ratio) if ratio else 0
    num_entry_blocks = -(-(3 - (-max_visible // BLOCK)) // 4) * 4 - 3
    entry_blocks = None
    block_index = np.arange(num_entry_blocks)
    if ratio:
        table = tables.entries[ratio]
        held = np.minimum(block_index, table.shape[1] - 1)
        blocks = np.concatenate([blocks, table[group.sequence[:, None], held]], axis=1)
        if tables.index_entries is not None and ratio == 4:
            entry_blocks = torch.from_numpy(tables.index_entries[group.sequence[:, None], held]).to(device)
    else:
        blocks = np.concatenate([blocks, np.zeros((tiles, num_entry_blocks), dtype=np.int64)], axis=1)
    return KeyTiles(
        queries=torch.from_numpy(group.rows.reshape(-1)).to(device),
        rows_per_tile=rows_per_tile,
        blocks=torch.from_numpy(blocks).to(device),
        bias=_bias(group, window_block, num_entry_blocks, ratio, window, device),
        entry_blocks=entry_blocks,
        max_visible=max_visible,
    )


def _bias(
    group: _Tiles, window_block: Ints, num_entry_blocks: int, ratio: int, window: int, device: torch.device
) -> torch.Tensor:
    """0 where a key is visible, -inf elsewhere: float32 [n, Q, 1, (3 + entry blocks) * 64].

    Window key j is visible to query t iff t - W < j <= t (and j >= 0); entry w iff w < (t + 1) // ratio.
    """
    tiles, rows_per_tile = group.rows.shape
    position = torch.from_numpy(group.positions).to(device)[:, :, None]
    first_key = torch.from_numpy(window_block * BLOCK).to(device)
    slot = torch.arange(BLOCK, device=device)
    key = (first_key[:, :, None] + slot).view(tiles, 1, 3 * BLOCK)
    in_window = (key >= 0) & (key <= position) & (key > position - window)
    visible = torch.zeros(tiles, rows_per_tile, (3 + num_entry_blocks) * BLOCK, dtype=torch.bool, device=device)
    visible[:, :, : 3 * BLOCK] = in_window
    if ratio:
        entry = torch.arange(num_entry_blocks * BLOCK, device=device)
        visible[:, :, 3 * BLOCK :] = entry < (position + 1).div(ratio, rounding_mode="floor")
    bias = torch.zeros(visible.shape, dtype=torch.float32, device=device)
    return bias.masked_fill_(~visible, float("-inf"))[:, :, None, :]
