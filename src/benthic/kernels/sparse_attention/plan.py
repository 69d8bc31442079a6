"""From the chunks of a pass and the page tables of its sequences to query tiles.

Host arithmetic on arrays as long as the pass, never as long as its contexts (`plan_arrays`); the tables are read in
place by the kernels. The split from the tensors lets a trainer plan in another process and keep the shapes of a
captured step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benthic.kernels.sparse_attention.addresses import hidden_keys
from benthic.kernels.sparse_attention.tiles import BLOCK, WINDOW_BLOCKS, KeyTiles, TilePlan

SHORT_RUN = 16
"""Rows of one sequence up to which each is a tile of its own: a verification must not pay for tiles of 64 rows."""

TILES_PER_GROUP = 4
"""64-row tiles that share one product on CPU: a trade of memory against calls, never of bits."""

TILES_PER_GROUP_ON_CUDA = 64
"""Likewise on CUDA, where a group is a launch or more of every operation and memory is bounded within it."""

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
class KeyTables:
    """Where the keys of all sequences lie; `Chunk.sequence` indexes the rows. See `KeyTiles` for the addresses.

    `window` int64 [S, pages] and `entries[ratio]` int64 [S, pages] on the pass's device, contiguous;
    `window_page` tokens and `entry_pages[ratio]` entries a page; `entry_base` first slot of the entries.
    """

    window: Tensor
    window_page: int
    entries: Mapping[int, Tensor]
    entry_pages: Mapping[int, int]
    entry_base: int

    def tensors(self) -> list[Tensor]:
        """Every table, in a fixed order."""
        return [self.window, *self.entries.values()]

    def map(self, move: Callable[[Tensor], Tensor]) -> "KeyTables":
        """Applies `move` to every table."""
        entries = {ratio: move(table) for ratio, table in self.entries.items()}
        return replace(self, window=move(self.window), entries=entries)


@dataclass(frozen=True, slots=True)
class TileArrays:
    """Host side of one group of n tiles with Q rows, all int64: `rows`, `positions` [n, Q]; `used`, `sequence` [n].

    `num_runs`: see `KeyTiles`; 0 where a group stands for others of its shape.
    """

    rows: Ints
    positions: Ints
    used: Ints
    sequence: Ints
    last_position: int
    num_runs: int = 0


@dataclass(frozen=True, slots=True)
class TileTensors:
    """`TileArrays` on a device."""

    rows: Tensor
    positions: Tensor
    used: Tensor
    sequence: Tensor
    last_position: int
    num_runs: int = 0

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        return [self.rows, self.positions, self.used, self.sequence]

    def map(self, move: Callable[[Tensor], Tensor]) -> "TileTensors":
        """Applies `move` to every tensor."""
        rows, positions, used, sequence = (move(tensor) for tensor in self.tensors())
        return TileTensors(rows, positions, used, sequence, self.last_position, self.num_runs)


@dataclass(frozen=True, slots=True)
class TileCapacity:
    """Fixed sizes for a step that is captured once: at most `num_tiles` tiles of positions below `max_len`."""

    num_tiles: int
    max_len: int


def plan_tiles(
    chunks: Sequence[ChunkLike],
    tables: KeyTables,
    ratios: Sequence[int],
    *,
    window: int,
    num_rows: int,
    device: torch.device,
    tiles_per_group: int | None = None,
) -> dict[int, TilePlan]:
    """Plans one pass.

    Args:
        chunks: the runs of rows of the pass.
        tables: page tables of their sequences.
        ratios: the compression ratios that occur in the model (0 for window-only layers).
        window: sliding window W in tokens; at most 128, so that three aligned blocks cover it.
        num_rows: rows of the pass including dummies.
        tiles_per_group: how many 64-row tiles share one product; None: as suits the device.

    Returns:
        A plan for each ratio.
    """
    if tiles_per_group is None:
        tiles_per_group = tiles_of_a_group(device)
    groups = plan_arrays(chunks, tiles_per_group)
    tensors = [group_tensors(group, device) for group in groups]
    order = torch.from_numpy(row_order(groups, num_rows)).to(device)
    return tile_plans(tensors, order, tables, ratios, window=window)


def tiles_of_a_group(device: torch.device) -> int:
    """How many 64-row tiles make a group on a device."""
    return TILES_PER_GROUP if device.type == "cpu" else TILES_PER_GROUP_ON_CUDA


def plan_arrays(
    chunks: Sequence[ChunkLike],
    tiles_per_group: int,
    capacity: TileCapacity | None = None,
    *,
    short_run: int = SHORT_RUN,
) -> list[TileArrays]:
    """Cuts chunks into runs inside aligned blocks of 64 positions, and runs of up to `short_run` into single rows."""
    single: list[tuple[int, int, int, int]] = []
    runs: list[tuple[int, int, int, int]] = []
    for chunk in chunks:
        position, end = chunk.start, chunk.start + chunk.length
        row = chunk.start_row - chunk.start
        while position < end:
            stop = min(end, (position // BLOCK + 1) * BLOCK)
            if stop - position <= short_run and capacity is None:
                single += [(chunk.sequence, row + place, place, 1) for place in range(position, stop)]
            else:
                runs.append((chunk.sequence, row + position, position, stop - position))
            position = stop
    if capacity is not None:
        return [_pad(replace(_tiles(runs, BLOCK), last_position=capacity.max_len - 1), capacity.num_tiles)]
    groups = [_tiles(single, 1)] if single else []
    for first in range(0, len(runs), tiles_per_group):
        groups.append(_tiles(runs[first : first + tiles_per_group], BLOCK))
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


def _tiles(pieces: list[tuple[int, int, int, int]], rows_per_tile: int) -> TileArrays:
    sequence, row, position, used = np.array(pieces, dtype=np.int64).T
    offset = np.arange(rows_per_tile, dtype=np.int64)
    offset = np.where(offset < used[:, None], offset, 0)
    positions = position[:, None] + offset
    num_runs = 1 + int(np.count_nonzero(np.diff(sequence)))
    return TileArrays(row[:, None] + offset, positions, used, sequence, int(positions.max()), num_runs)


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
        sequence=more(group.sequence),
        num_runs=0,
    )


def group_tensors(group: TileArrays, device: torch.device) -> TileTensors:
    """Moves one group to a device."""

    def move(array: Ints) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)

    tensors = (move(group.rows), move(group.positions), move(group.used), move(group.sequence))
    return TileTensors(*tensors, group.last_position, group.num_runs)


def tile_plans(
    groups: Sequence[TileTensors],
    order: Tensor,
    tables: KeyTables,
    ratios: Sequence[int],
    *,
    window: int,
    with_bias: bool = False,
    is_in_order: bool = False,
) -> dict[int, TilePlan]:
    """Finishes a plan on the device: a `TilePlan` for each ratio.

    `with_bias` makes masks once for all layers: worth its memory where layers work with tensors alone, in training.
    `is_in_order`: see `TilePlan`.
    """
    assert window <= 2 * BLOCK, f"a window of {window} needs more than {WINDOW_BLOCKS} aligned blocks of {BLOCK}"
    plans = {}
    for ratio in ratios:
        tiles = [_key_tiles(group, tables, ratio, window) for group in groups]
        if with_bias:
            tiles = [replace(one, bias=hidden_keys(one, (0, one.num_blocks), None)) for one in tiles]
        plans[ratio] = TilePlan(tuple(tiles), order, is_in_order)
    return plans


def _key_tiles(group: TileTensors, tables: KeyTables, ratio: int, window: int) -> KeyTiles:
    return KeyTiles(
        queries=group.rows.view(-1),
        rows_per_tile=group.rows.shape[1],
        positions=group.positions,
        used=group.used,
        sequence=group.sequence,
        window_table=tables.window,
        window_page=tables.window_page,
        window=window,
        entry_table=tables.entries[ratio] if ratio else None,
        entry_page=tables.entry_pages[ratio] if ratio else BLOCK,
        entry_base=tables.entry_base,
        ratio=ratio,
        last_position=group.last_position,
        num_runs=group.num_runs,
    )
