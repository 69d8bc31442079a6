"""Where everything of a packed pass lies: host arithmetic, once a pass, optionally with fixed shapes.

A `PackedPlan` is a record of small tensors. With a `PackedCapacity` its shapes depend on the capacity alone, so a
training step can be captured once and fed by `copy_`; plans can then be made in other processes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benthic.kernels.compress_kv import CompletedBlocks, plan_completed
from benthic.kernels.sparse_attention import BLOCK, KeyTables, TileCapacity
from benthic.kernels.sparse_attention.plan import TILES_PER_GROUP, TileTensors, group_tensors, plan_arrays, row_order
from benthic.models.config import ModelConfig
from benthic.models.context import Chunk
from benthic.models.rotary import layer_frequencies

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedCapacity:
    """Fixed sizes of a pass: exactly `num_rows` real rows, in sequences of up to `max_len` tokens.

    A sequence takes one tile, and one page of 64 in the kv buffer, for every 64 positions begun: `max_blocks` in all.
    """

    num_rows: int
    max_blocks: int
    max_len: int


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """Slots and tiles of a packed pass, in pages of 64.

    `frequencies[ratio]` float32 [r/2]: rotary frequencies. `slots` int64 [rows]: kv buffer slot of each row's window
    key. `completed[ratio]`: blocks that the sequences complete, absent where there are none and in layers of ratio 1,
    whose entries are the rows themselves; `entry_slots[ratio]` int64 [m]: the entries' slots, counted from the first
    entry page. Models without a window have no window pages.
    """

    groups: tuple[TileTensors, ...]
    tables: KeyTables
    order: Tensor
    slots: Tensor
    frequencies: dict[int, Tensor]
    completed: dict[int, CompletedBlocks]
    entry_slots: dict[int, Tensor]
    num_window_blocks: int
    num_entry_blocks: dict[int, int]

    def tensors(self) -> list[Tensor]:
        """Every tensor, in a fixed order."""
        found = [self.order, self.slots, *self.frequencies.values(), *self.entry_slots.values(), *self.tables.tensors()]
        for blocks in self.completed.values():
            found += [blocks.positions, blocks.sources] + ([blocks.first] if blocks.first is not None else [])
        for group in self.groups:
            found += group.tensors()
        return found

    def copy_(self, other: "PackedPlan") -> None:
        """Takes the values of a plan of the same capacity, in place."""
        for mine, theirs in zip(self.tensors(), other.tensors(), strict=True):
            mine.copy_(theirs, non_blocking=True)

    def to(self, device: torch.device) -> "PackedPlan":
        """The same plan on a device; itself if it is there already."""
        if self.order.device == device:
            return self
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin(self) -> "PackedPlan":
        """The same plan in pinned memory, for copies that do not block."""
        return self.map(torch.Tensor.pin_memory)

    def map(self, move: Callable[[Tensor], Tensor]) -> "PackedPlan":
        """Applies `move` to every tensor."""
        return replace(
            self,
            groups=tuple(group.map(move) for group in self.groups),
            tables=self.tables.map(move),
            order=move(self.order),
            slots=move(self.slots),
            frequencies={ratio: move(frequencies) for ratio, frequencies in self.frequencies.items()},
            completed={
                ratio: replace(
                    blocks,
                    positions=move(blocks.positions),
                    sources=move(blocks.sources),
                    first=None if blocks.first is None else move(blocks.first),
                )
                for ratio, blocks in self.completed.items()
            },
            entry_slots={ratio: move(slots) for ratio, slots in self.entry_slots.items()},
        )


def plan_packed(
    config: ModelConfig,
    chunks: Sequence[Chunk],
    num_rows: int,
    *,
    capacity: PackedCapacity | None = None,
    on_cuda: bool = False,
) -> PackedPlan:
    """Plans whole sequences on the host.

    Args:
        chunks: each a whole sequence from position 0, numbered 0, 1, ... in order.
        num_rows: rows of the pass, dummies included. With a capacity: no dummies, and equal to its `num_rows`.
        capacity: fixes every shape.
        on_cuda: run all tiles in one group; on CPU four at a time keep temporaries in cache. Bits are the same.
    """
    for number, chunk in enumerate(chunks):
        assert chunk.start == 0, f"sequence {number} starts at {chunk.start}, not 0"
        assert chunk.sequence == number, f"sequence {number} is numbered {chunk.sequence}"
    _check_capacity(chunks, num_rows, capacity)
    ratios = sorted({layer.ratio for layer in (*config.layers, *config.mtp_layers)} - {0})
    lengths = np.array([chunk.length for chunk in chunks], dtype=np.int64)
    starts = np.array([chunk.start_row for chunk in chunks], dtype=np.int64)
    window, num_window_blocks = _consecutive(lengths)
    entries, num_entry_blocks = {}, {}
    for ratio in ratios:
        entries[ratio], num_entry_blocks[ratio] = _consecutive(lengths // ratio)
    tile_capacity = None
    if not config.sliding_window:
        num_window_blocks = 0
    elif capacity is not None:
        num_window_blocks = capacity.max_blocks
    if capacity is not None:
        # Entries never take more blocks than positions; one block to spare for surplus places.
        num_entry_blocks = {ratio: capacity.max_blocks + 1 for ratio in ratios}
        tile_capacity = TileCapacity(capacity.max_blocks, capacity.max_len)
    # A gradient through many single rows would add up their keys' shares one by one.
    groups = plan_arrays(chunks, 1 << 30 if on_cuda else TILES_PER_GROUP, tile_capacity, short_run=1)
    host = torch.device("cpu")
    slots = _slots(window, chunks)
    completed, entry_slots = {}, {}
    for ratio in ratios:
        if ratio == 1:
            entry_slots[1] = slots
            continue
        spare = None if capacity is None else ((num_entry_blocks[ratio] - 1) * BLOCK, capacity.num_rows // ratio)
        found = _completed(chunks, ratio, starts, entries[ratio], spare)
        if found is not None:
            completed[ratio], entry_slots[ratio] = found
    return PackedPlan(
        groups=tuple(group_tensors(group, host) for group in groups),
        tables=KeyTables(
            window=_table(window, 1, capacity),
            window_page=BLOCK,
            entries={ratio: _table(table, ratio, capacity) for ratio, table in entries.items()},
            entry_pages=dict.fromkeys(ratios, BLOCK),
            entry_base=num_window_blocks * BLOCK,
        ),
        order=torch.from_numpy(row_order(groups, num_rows)),
        slots=slots,
        frequencies={ratio: layer_frequencies(config, ratio) for ratio in (0, *ratios)},
        completed=completed,
        entry_slots=entry_slots,
        num_window_blocks=num_window_blocks,
        num_entry_blocks=num_entry_blocks,
    )


def _check_capacity(chunks: Sequence[Chunk], num_rows: int, capacity: PackedCapacity | None) -> None:
    if capacity is None:
        return
    real = sum(chunk.length for chunk in chunks)
    longest = max(chunk.length for chunk in chunks)
    assert real == num_rows == capacity.num_rows, f"{real} real of {num_rows} rows; capacity is {capacity.num_rows}"
    blocks = sum(-(-chunk.length // BLOCK) for chunk in chunks)
    assert blocks <= capacity.max_blocks, f"{blocks} blocks exceed {capacity.max_blocks}"
    assert longest <= capacity.max_len, f"a sequence of {longest} tokens exceeds {capacity.max_len}"


def _consecutive(lengths: Ints) -> tuple[Ints, int]:
    """Gives each sequence consecutive blocks: table [sequences, longest], and how many blocks there are (>= 1)."""
    blocks = -(-lengths // BLOCK)
    first = np.cumsum(blocks) - blocks
    total = int(blocks.sum())
    table = first[:, None] + np.arange(max(1, int(blocks.max(initial=0))))
    return np.minimum(table, max(total - 1, 0)), max(total, 1)


def _table(table: Ints, ratio: int, capacity: PackedCapacity | None) -> Tensor:
    """A page table as a tensor; with a capacity as large as any batch may need."""
    if capacity is None:
        return torch.from_numpy(table)
    whole = torch.zeros(capacity.max_blocks, max(1, -(-(capacity.max_len // ratio) // BLOCK)), dtype=torch.int64)
    whole[: table.shape[0], : table.shape[1]] = torch.from_numpy(table)
    return whole


def _slots(window: Ints, chunks: Sequence[Chunk]) -> Tensor:
    """Buffer slot of each real row."""
    parts = [window[chunk.sequence, 0] * BLOCK + np.arange(chunk.length) for chunk in chunks]
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _completed(
    chunks: Sequence[Chunk], ratio: int, starts: Ints, table: Ints, spare: tuple[int, int] | None
) -> tuple[CompletedBlocks, Tensor] | None:
    """Blocks that the sequences complete and their slots; `spare` is the slot and the count that surplus fills up."""
    blocks = plan_completed(chunks, ratio, lambda s, p: starts[s] + p, torch.device("cpu"))
    if blocks is None:
        if spare is None:
            return None
        blocks = _no_completed(ratio)
    slots = table[blocks.sequence, blocks.index // BLOCK] * BLOCK + blocks.index % BLOCK
    if spare is not None:
        # Surplus places write to the spare last block, which no tile reads.
        blocks, slots = _pad_completed(blocks, slots, spare[1], spare[0])
    return blocks, torch.from_numpy(slots)


def _no_completed(ratio: int) -> CompletedBlocks:
    none = np.zeros(0, dtype=np.int64)
    sources = torch.zeros(0, 2 * ratio if ratio == 4 else ratio, dtype=torch.int64)
    return CompletedBlocks(ratio, torch.from_numpy(none), sources, None, none, none)


def _pad_completed(blocks: CompletedBlocks, slots: Ints, count: int, spare: int) -> tuple[CompletedBlocks, Ints]:
    """Adds blocks made of row 0, writing to the spare slot, up to `count` blocks."""
    missing = count - len(slots)
    assert missing >= 0, f"{len(slots)} completed blocks exceed the capacity of {count}"
    first = blocks.first
    if blocks.ratio == 4:
        flags = np.concatenate([blocks.index == 0, np.ones(missing, dtype=bool)])
        first = torch.from_numpy(flags[:, None, None])

    def more(tensor: Tensor) -> Tensor:
        return torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])

    padded = replace(blocks, positions=more(blocks.positions), sources=more(blocks.sources), first=first)
    return padded, np.concatenate([slots, np.full(missing, spare, dtype=np.int64)])
