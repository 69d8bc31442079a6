"""The attention context of serving: this pass's entries are written in place, what came before is read by table.

It uses the planning functions of the packed context, so a row reads the same keys in the same grouping whether its
sequence is packed whole or grew token by token. Everything here is built once a pass and shared by the layers.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benthic.cache.block_manager import BlockTable
from benthic.cache.buffers import CacheBuffers
from benthic.cache.layout import BLOCK_SIZE, CSA, WINDOW
from benthic.kernels.compress_kv import CompletedBlocks, plan_completed
from benthic.kernels.rope import RopeTable, rope_table
from benthic.kernels.sparse_attention import BLOCK, KeyTables, TilePlan, plan_tiles
from benthic.models.config import ModelConfig
from benthic.models.context import Chunk, Rows

assert BLOCK == BLOCK_SIZE, "a cache block is a key block"

Ints = npt.NDArray[np.int64]


class ServingContext:
    """`AttentionContext` over the cache of running sequences.

    Args:
        config: the model's.
        rows: the pass; `Chunk.sequence` indexes `tables`.
        tables: block tables, grown to hold the pass.
        buffers: the cache's tensors; written in place.
        frequencies: rotary frequencies by compression ratio, on the device.
    """

    def __init__(
        self,
        config: ModelConfig,
        rows: Rows,
        tables: Sequence[BlockTable],
        buffers: CacheBuffers,
        frequencies: Mapping[int, Tensor],
    ) -> None:
        self.rows = rows
        self._buffers = buffers
        self._ratios = tuple(layer.ratio for layer in (*config.layers, *config.mtp_layers))
        device = rows.positions.device
        ids = {ratio: _matrix([table.blocks[ratio] for table in tables]) for ratio in tables[0].blocks}
        window = ids[WINDOW]
        self._slots = torch.from_numpy(_slots(window, rows.chunks)).to(device)
        self._plans = plan_tiles(
            rows.chunks,
            _key_tables(ids, buffers.entry_base * BLOCK_SIZE, device),
            sorted(frequencies),
            window=config.sliding_window,
            num_rows=len(rows.positions),
            device=device,
        )
        self._rope = {ratio: rope_table(rows.positions, f) for ratio, f in frequencies.items()}
        self._completed: dict[int, CompletedBlocks] = {}
        self._entry_slots: dict[int, Tensor] = {}
        self._entry_rope: dict[int, RopeTable] = {}
        for ratio in frequencies.keys() - {WINDOW}:
            if not any(_completes(chunk, ratio) for chunk in rows.chunks):
                continue
            blocks = plan_completed(rows.chunks, ratio, lambda s, p: _slot(window, s, p), device)
            if blocks is not None:
                slots = _slot(ids[ratio], blocks.sequence, blocks.index)
                self._completed[ratio] = blocks
                self._entry_slots[ratio] = torch.from_numpy(slots).to(device)
                self._entry_rope[ratio] = rope_table(blocks.positions, frequencies[ratio])

    def rope(self, ratio: int) -> RopeTable:
        """Rotations of this pass's rows."""
        return self._rope[ratio]

    def entry_rope(self, ratio: int) -> RopeTable:
        """Rotations of the entries that this pass completes."""
        return self._entry_rope[ratio]

    def completed(self, ratio: int) -> CompletedBlocks | None:
        """The compression blocks whose last token lies in this pass."""
        return self._completed.get(ratio)

    def plan(self, ratio: int) -> TilePlan:
        """Which keys each row may read."""
        return self._plans[ratio]

    def write_window(self, layer: int, entries: Tensor) -> Tensor:
        """Stores kv entries of the real rows; returns the layer's kv buffer."""
        return self._buffers.kv[layer].index_copy_(0, self._slots, entries[: self.rows.num_rows])

    def write_raw(self, layer: int, raw: Tensor) -> Tensor:
        """Stores raw compressor rows of the real rows; returns their buffer."""
        buffer = self._buffers.raw[layer]
        assert buffer is not None, f"layer {layer} has no compressor"
        return buffer.index_copy_(0, self._slots, raw[: self.rows.num_rows])

    def write_entries(self, layer: int, entries: Tensor | None) -> Tensor:
        """Stores completed entries; returns the layer's kv buffer."""
        buffer = self._buffers.kv[layer]
        if entries is None:
            return buffer
        slots = self._entry_slots[self._ratios[layer]] + self._buffers.entry_base * BLOCK_SIZE
        return buffer.index_copy_(0, slots, entries)

    def write_index(self, layer: int, entries: Tensor | None) -> Tensor:
        """Stores completed indexer keys; returns their buffer."""
        buffer = self._buffers.index[layer]
        assert buffer is not None, f"layer {layer} has no indexer"
        if entries is None:
            return buffer
        return buffer.index_copy_(0, self._entry_slots[CSA], entries)


def _completes(chunk: Chunk, ratio: int) -> bool:
    return chunk.start // ratio < (chunk.start + chunk.length) // ratio


def _key_tables(ids: Mapping[int, Ints], entry_base: int, device: torch.device) -> KeyTables:
    tables = {ratio: torch.from_numpy(table).to(device) for ratio, table in ids.items()}
    window = tables.pop(WINDOW)
    return KeyTables(window, BLOCK_SIZE, tables, dict.fromkeys(tables, BLOCK_SIZE), entry_base)


def _matrix(lists: Sequence[Sequence[int]]) -> Ints:
    """Rows of block ids, filled up with the null block."""
    width = max(1, *(len(ids) for ids in lists)) if lists else 1
    matrix = np.zeros((len(lists), width), dtype=np.int64)
    for row, ids in zip(matrix, lists, strict=True):
        row[: len(ids)] = ids
    return matrix


def _slot(table: Ints, sequence: Ints, index: Ints) -> Ints:
    return table[sequence, index // BLOCK_SIZE] * BLOCK_SIZE + index % BLOCK_SIZE


def _slots(window: Ints, chunks: Sequence[Chunk]) -> Ints:
    """Buffer slot of each real row."""
    lengths = [chunk.length for chunk in chunks]
    sequence = np.repeat([chunk.sequence for chunk in chunks], lengths)
    position = np.concatenate([np.arange(chunk.start, chunk.start + chunk.length) for chunk in chunks])
    return _slot(window, sequence, position)
