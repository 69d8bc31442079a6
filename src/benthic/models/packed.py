"""The attention context of training and scoring: whole sequences, packed, each token once.

Every sequence starts at position 0 and owns aligned blocks of a buffer that lives as long as the pass, so documents
cannot see one another and the grouping of keys is that of serving. Writes are functional, hence differentiable.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.compress_kv import CompletedBlocks, plan_completed
from benthic.kernels.rope import RopeTable, rope_table
from benthic.kernels.sparse_attention import BLOCK, BlockTables, TilePlan, plan_tiles
from benthic.models.config import ModelConfig
from benthic.models.context import Chunk, Rows
from benthic.models.rotary import layer_frequencies


class PackedContext:
    """`AttentionContext` over the whole sequences in `rows`.

    Args:
        config: the model's.
        rows: every chunk starts at position 0; sequences are numbered 0, 1, ... in order.
        tiles_per_group: see `plan_tiles`; None takes 4 on CPU and all at once on CUDA.
    """

    def __init__(self, config: ModelConfig, rows: Rows, *, tiles_per_group: int | None = None) -> None:
        self.rows = rows
        device = rows.positions.device
        for number, chunk in enumerate(rows.chunks):
            assert chunk.start == 0 and chunk.sequence == number, f"chunk {number} is not a whole sequence: {chunk}"
        layers = (*config.layers, *config.mtp_layers)
        self._ratios = {index: layer.ratio for index, layer in enumerate(layers)}
        ratios = sorted(set(self._ratios.values()))
        lengths = np.array([chunk.length for chunk in rows.chunks], dtype=np.int64)
        window, num_window_blocks = _consecutive(lengths)
        entries, self._num_entry_blocks = {}, {}
        for ratio in ratios:
            if ratio:
                entries[ratio], self._num_entry_blocks[ratio] = _consecutive(lengths // ratio)
        self._num_window_blocks = num_window_blocks
        self._slots = _slots(window, rows.chunks, device)
        tables = BlockTables(
            window=window,
            entries={ratio: table + num_window_blocks for ratio, table in entries.items()},
            index_entries=entries.get(4),
        )
        per_group = tiles_per_group or (1 << 30 if device.type == "cuda" else 4)
        self._plans = plan_tiles(
            rows.chunks,
            tables,
            ratios,
            window=config.sliding_window,
            num_rows=len(rows.positions),
            device=device,
            tiles_per_group=per_group,
        )
        starts = np.array([chunk.start_row for chunk in rows.chunks], dtype=np.int64)
        self._completed: dict[int, CompletedBlocks | None] = {}
        self._entry_slots: dict[int, Tensor] = {}
        self._rope: dict[int, RopeTable] = {}
        self._entry_rope: dict[int, RopeTable] = {}
        for ratio in ratios:
            frequencies = layer_frequencies(config, ratio).to(device)
            self._rope[ratio] = rope_table(rows.positions, frequencies)
            if not ratio:
                continue
            blocks = plan_completed(rows.chunks, ratio, lambda s, p: starts[s] + p, device)
            self._completed[ratio] = blocks
            if blocks is not None:
                slots = entries[ratio][blocks.sequence, blocks.index // BLOCK] * BLOCK + blocks.index % BLOCK
                self._entry_slots[ratio] = torch.from_numpy(slots).to(device)
                self._entry_rope[ratio] = rope_table(blocks.positions, frequencies)
        self._window_buffers: dict[int, Tensor] = {}

    def rope(self, ratio: int) -> RopeTable:
        return self._rope[ratio]

    def entry_rope(self, ratio: int) -> RopeTable:
        return self._entry_rope[ratio]

    def completed(self, ratio: int) -> CompletedBlocks | None:
        return self._completed[ratio]

    def plan(self, ratio: int) -> TilePlan:
        return self._plans[ratio]

    def write_window(self, layer: int, entries: Tensor) -> Tensor:
        ratio = self._ratios[layer]
        blocks = self._num_window_blocks + self._num_entry_blocks.get(ratio, 0)
        buffer = entries.new_zeros(blocks * BLOCK, entries.shape[-1])
        buffer = buffer.index_copy(0, self._slots, entries[: self.rows.num_rows])
        self._window_buffers[layer] = buffer
        return buffer

    def write_raw(self, layer: int, raw: Tensor) -> Tensor:
        # Every block is completed within the pass, so its raw rows are the pass's own.
        return raw

    def write_entries(self, layer: int, entries: Tensor | None) -> Tensor:
        buffer = self._window_buffers.pop(layer)
        if entries is None:
            return buffer
        slots = self._entry_slots[self._ratios[layer]] + self._num_window_blocks * BLOCK
        return buffer.index_copy(0, slots, entries)

    def write_index(self, layer: int, entries: Tensor | None) -> Tensor:
        if entries is None:
            return torch.zeros(0)  # no entry exists, so no row scores any
        buffer = entries.new_zeros(self._num_entry_blocks[4] * BLOCK, entries.shape[-1])
        return buffer.index_copy(0, self._entry_slots[4], entries)


def _consecutive(lengths: np.ndarray) -> tuple[np.ndarray, int]:
    """Gives each sequence consecutive blocks: table [sequences, longest], and how many blocks there are (>= 1)."""
    blocks = -(-lengths // BLOCK)
    first = np.cumsum(blocks) - blocks
    total = int(blocks.sum())
    table = first[:, None] + np.arange(max(1, int(blocks.max(initial=0))))
    return np.minimum(table, max(total - 1, 0)), max(total, 1)


def _slots(window: np.ndarray, chunks: Sequence[Chunk], device: torch.device) -> Tensor:
    """Buffer slot of each real row."""
    parts = [window[chunk.sequence, 0] * BLOCK + np.arange(chunk.length) for chunk in chunks]
    return torch.from_numpy(np.concatenate(parts).astype(np.int64)).to(device)
