"""The attention context of training and scoring: whole sequences, packed, each token once.

Every sequence starts at position 0 and owns aligned blocks of a buffer that lives as long as the pass, so documents
cannot see one another and the grouping of keys is that of serving. Writes are functional, hence differentiable.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from benthic.kernels.compress_kv import CompletedBlocks
from benthic.kernels.rope import RopeTable, rope_table
from benthic.kernels.sparse_attention import BLOCK, DEFAULT_WORKSPACE_BYTES, TilePlan
from benthic.kernels.sparse_attention.plan import tile_plans
from benthic.models.beside import T, in_line
from benthic.models.config import ModelConfig
from benthic.models.context import LatentForm, Rows
from benthic.models.packed_plan import PackedPlan, plan_packed


class PackedContext:
    """`AttentionContext` over the whole sequences in `rows`.

    Args:
        config: the model's.
        rows: every chunk starts at position 0; sequences are numbered 0, 1, ... in order.
        plan: made before by `plan_packed`, on the device of `rows`; made here if None.
        latent_form: how latent attention is computed. "absorbed" gives the bits of serving; "expanded" is cheaper for
            long sequences and equal up to rounding.
    """

    workspace_bytes = DEFAULT_WORKSPACE_BYTES
    places = None

    def __init__(
        self,
        config: ModelConfig,
        rows: Rows,
        plan: PackedPlan | None = None,
        *,
        latent_form: LatentForm = "absorbed",
    ) -> None:
        device = rows.positions.device
        if plan is None:
            plan = plan_packed(config, rows.chunks, len(rows.positions), on_cuda=device.type == "cuda").to(device)
        self.rows, self._plan, self.latent_form = rows, plan, latent_form
        self._ratios = [layer.ratio for layer in (*config.layers, *config.mtp_layers)]
        ratios = sorted(set(self._ratios))
        on_cuda = device.type == "cuda"
        self._tiles = tile_plans(
            plan.groups, plan.order, plan.tables, ratios, window=config.sliding_window, with_bias=on_cuda
        )
        self._rope: dict[int, RopeTable] = {}
        self._entry_rope: dict[int, RopeTable] = {}
        for ratio in ratios:
            frequencies = plan.frequencies[ratio]
            self._rope[ratio] = rope_table(rows.positions, frequencies, config.rope_amplitude)
            blocks = plan.completed.get(ratio)
            if blocks is not None:
                self._entry_rope[ratio] = rope_table(blocks.positions, frequencies, config.rope_amplitude)
        self._window_buffers: dict[int, Tensor] = {}

    def beside(self, work: Callable[[], T]) -> Callable[[], T]:
        """See `AttentionContext`."""
        return in_line(work)

    def rope(self, ratio: int) -> RopeTable:
        """See `AttentionContext`."""
        return self._rope[ratio]

    def entry_rope(self, ratio: int) -> RopeTable:
        """See `AttentionContext`."""
        return self._entry_rope[ratio]

    def completed(self, ratio: int) -> CompletedBlocks | None:
        """See `AttentionContext`."""
        return self._plan.completed.get(ratio)

    def plan(self, ratio: int) -> TilePlan:
        """See `AttentionContext`."""
        return self._tiles[ratio]

    def write_window(self, layer: int, entries: Tensor) -> Tensor:
        """See `AttentionContext`."""
        blocks = self._plan.num_window_blocks + self._plan.num_entry_blocks.get(self._ratios[layer], 0)
        buffer = entries.new_zeros(blocks * BLOCK, entries.shape[-1])
        buffer = buffer.index_copy(0, self._plan.slots, entries[: self.rows.num_rows])
        self._window_buffers[layer] = buffer
        return buffer

    def write_raw(self, layer: int, raw: Tensor) -> Tensor:
        """See `AttentionContext`. Every block is completed within the pass, so its raw rows are the pass's own."""
        return raw

    def write_entries(self, layer: int, entries: Tensor | None) -> Tensor:
        """See `AttentionContext`."""
        ratio, base = self._ratios[layer], self._plan.num_window_blocks * BLOCK
        if ratio == 1:
            assert entries is not None, "a layer of ratio 1 has an entry for every row"
            return self._buffer(ratio, entries)
        buffer = self._window_buffers.pop(layer)
        if entries is None:
            return buffer
        return buffer.index_copy(0, self._plan.entry_slots[ratio] + base, entries)

    def write_index(self, layer: int, entries: Tensor | None) -> Tensor:
        """See `AttentionContext`."""
        if entries is None:
            return torch.zeros(0)  # no entry exists, so no row scores any
        return self._buffer(self._ratios[layer], entries)

    def _buffer(self, ratio: int, entries: Tensor) -> Tensor:
        """Entries in their slots, and zeros in the others."""
        buffer = entries.new_zeros(self._plan.num_entry_blocks[ratio] * BLOCK, entries.shape[-1])
        return buffer.index_copy(0, self._plan.entry_slots[ratio], entries)
