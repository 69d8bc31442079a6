"""From the chunks of a pass and the block tables of its sequences to query tiles.

Host arithmetic on small arrays, once a pass (`plan_arrays`); then tensors, where masks are made on the device
(`tile_plans`). The split lets a trainer plan in another process and keep the shapes of a captured step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benthic.kernels.sparse_attention.tiles import KeyTiles, TilePlan

BLOCK = 64
"""Keys in a block: the unit in which scores are grouped and partial sums are folded."""

WINDOW_BLOCKS = 3
"""Aligned blocks that a tile of 64 rows needs to see a window of 128 tokens."""

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


@dataclass(frozen=True, slots=True)
class TileArrays:
    """Host side of one group of n tiles with Q rows: all int64.

    `rows`, `positions` [n, Q]; `used` [n] rows of its own; `window` [n, 3] and `entries[ratio]` [n, B - 3] blocks of
    the kv buffer; `index_entries` [n, B - 3] blocks of the indexer's buffer; `position_block` [n].
    """

    rows: Ints
    positions: Ints
    used: Ints
    position_block: Ints
    window: Ints
    entries: Mapping[int, Ints]
    index_entries: Ints | None
    last_position: int


@dataclass(frozen=True, slots=True)
class TileCapacity:
    """Fixed sizes for a step that is captured once: at most `num_tiles` tiles of positions below `max_len`."""

    num_tiles: int
    max_len: int


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
    groups = plan_arrays(chunks, tables, tiles_per_group)
    return tile_plans(
        [group_tensors(group, device) for group in groups],
        torch.from_numpy(row_order(groups, num_rows)).to(device),
        ratios,
        window=window,
    )


def plan_arrays(
    chunks: Sequence[ChunkLike], tables: BlockTables, tiles_per_group: int, capacity: TileCapacity | None = None
) -> list[TileArrays]:
    """Cuts chunks into single rows and runs inside aligned blocks of 64 positions; looks up their key blocks."""
    single: list[tuple[int, int, int, int]] = []
    runs: list[tuple[int, int, int, int]] = []
    for chunk in chunks:
        if chunk.length == 1 and capacity is None:
            single.append((chunk.sequence, chunk.start_row, chunk.start, 1))
            continue
        position, end = chunk.start, chunk.start + chunk.length
        while position < end:
            stop = min(end, (position // BLOCK + 1) * BLOCK)
            runs.append((chunk.sequence, chunk.start_row + position - chunk.start, position, stop - position))
            position = stop
    if capacity is not None:
        return [_pad(_tiles(runs, BLOCK, tables, capacity.max_len - 1), capacity.num_tiles)]
    groups = [_tiles(single, 1, tables)] if single else []
    for first in range(0, len(runs), tiles_per_group):
        groups.append(_tiles(runs[first : first + tiles_per_group], BLOCK, tables))
    return groups


def row_order(groups: Sequence[TileArrays], num_rows: int) -> Ints:
    """Place of each row among all groups' query places; dummy rows get place 0."""
    order = np.zeros(num_rows, dtype=np.int64)
    base = 0
    for group in groups:
        tiles, rows_per_tile = group.rows.shape
        real = np.arange(rows_per_tile) < group.used[:, None]
        places = base + np.arange(tiles * rows_per_tile, dtype=np.int64).reshape(tiles, rows_per_tile)
        order[group.rows[real]] = places[real]
        base += tiles * rows_per_tile
    return order


def _tiles(
    pieces: list[tuple[int, int, int, int]], rows_per_tile: int, tables: BlockTables, last_position: int | None = None
) -> TileArrays:
    sequence, row, position, used = np.array(pieces, dtype=np.int64).T
    offset = np.arange(rows_per_tile, dtype=np.int64)
    offset = np.where(offset < used[:, None], offset, 0)
    positions = position[:, None] + offset
    last = int(positions.max()) if last_position is None else last_position
    block = position // BLOCK
    window = tables.window[sequence[:, None], np.maximum(block[:, None] + np.arange(1 - WINDOW_BLOCKS, 1), 0)]
    entries = {ratio: _entry_blocks(table, sequence, ratio, last) for ratio, table in tables.entries.items()}
    index_entries = None
    if tables.index_entries is not None:
        index_entries = _entry_blocks(tables.index_entries, sequence, 4, last)
    return TileArrays(row[:, None] + offset, positions, used, block, window, entries, index_entries, last)


def num_entry_blocks(last_position: int, ratio: int) -> int:
    """Blocks of entries that a group lists: what its last row sees, rounded up so that 3 + that is a multiple of 4."""
    visible = (last_position + 1) // ratio if ratio else 0
    blocks = WINDOW_BLOCKS + -(-visible // BLOCK)
    return -(-blocks // 4) * 4 - WINDOW_BLOCKS


def _entry_blocks(table: Ints, sequence: Ints, ratio: int, last_position: int) -> Ints:
    listed = np.minimum(np.arange(num_entry_blocks(last_position, ratio)), table.shape[1] - 1)
    blocks: Ints = table[sequence[:, None], listed]
    return blocks


def _pad(group: TileArrays, num_tiles: int) -> TileArrays:
    """Repeats the first tile, without rows of its own, up to a fixed number of tiles."""
    missing = num_tiles - len(group.used)
    assert missing >= 0, f"{len(group.used)} tiles exceed the capacity of {num_tiles}"

    def more(array: Ints) -> Ints:
        return np.concatenate([array, np.repeat(array[:1], missing, axis=0)])

    return replace(
        group,
        rows=more(group.rows),
        positions=more(group.positions),
        used=np.concatenate([group.used, np.zeros(missing, dtype=np.int64)]),
        position_block=more(group.position_block),
        window=more(group.window),
        entries={ratio: more(blocks) for ratio, blocks in group.entries.items()},
        index_entries=None if group.index_entries is None else more(group.index_entries),
    )


@dataclass(frozen=True, slots=True)
class TileTensors:
    """`TileArrays` on a device."""

    rows: Tensor
    positions: Tensor
    position_block: Tensor
    window: Tensor
    entries: Mapping[int, Tensor]
    index_entries: Tensor | None
    last_position: int


def group_tensors(group: TileArrays, device: torch.device) -> TileTensors:
    """Moves one group to a device."""

    def move(array: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    return TileTensors(
        move(group.rows),
        move(group.positions),
        move(group.position_block),
        move(group.window),
        {ratio: move(blocks) for ratio, blocks in group.entries.items()},
        None if group.index_entries is None else move(group.index_entries),
        group.last_position,
    )


def tile_plans(
    groups: Sequence[TileTensors], order: Tensor, ratios: Sequence[int], *, window: int
) -> dict[int, TilePlan]:
    """Finishes a plan on the device: a `TilePlan` for each ratio, masks included."""
    assert window <= 2 * BLOCK, f"a window of {window} needs more than {WINDOW_BLOCKS} aligned blocks of {BLOCK}"
    return {ratio: TilePlan(tuple(_key_tiles(group, ratio, window) for group in groups), order) for ratio in ratios}


def _key_tiles(group: TileTensors, ratio: int, window: int) -> KeyTiles:
    tiles, rows_per_tile = group.rows.shape
    entries = group.entries[ratio] if ratio else group.window.new_zeros(tiles, num_entry_blocks(group.last_position, 0))
    return KeyTiles(
        queries=group.rows.view(-1),
        rows_per_tile=rows_per_tile,
        blocks=torch.cat([group.window, entries], dim=1),
        bias=_bias(group, entries.shape[1], ratio, window),
        entry_blocks=group.index_entries if ratio == 4 else None,
        max_visible=(group.last_position + 1) // ratio if ratio else 0,
    )


def _bias(group: TileTensors, num_entries: int, ratio: int, window: int) -> Tensor:
    """0 where a key is visible, -inf elsewhere: float32 [n, Q, 1, (3 + entry blocks) * 64].

    Window key j is visible to query t iff t - W < j <= t (and j >= 0); entry w iff w < (t + 1) // ratio.
    """
    device = group.positions.device
    tiles, rows_per_tile = group.positions.shape
    position = group.positions[:, :, None]
    slot = torch.arange(WINDOW_BLOCKS * BLOCK, device=device) - (WINDOW_BLOCKS - 1) * BLOCK
    key = (group.position_block[:, None] * BLOCK + slot).view(tiles, 1, WINDOW_BLOCKS * BLOCK)
    visible = (key >= 0) & (key <= position) & (key > position - window)
    entry = torch.arange(num_entries * BLOCK, device=device)
    limit = (position + 1).div(ratio, rounding_mode="floor") if ratio else torch.zeros_like(position)
    visible = torch.cat([visible, entry < limit], dim=-1)
    bias = torch.zeros(visible.shape, dtype=torch.float32, device=device)
    return bias.masked_fill_(~visible, float("-inf"))[:, :, None, :]
