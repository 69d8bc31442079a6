"""The attention context of serving: this pass's entries are written in place, what came before is read by table.

Everything here is built once a pass, shared by the layers, and of the size of the pass: a row at position one million
costs what a row at position ten does. A row reads the same keys in the same grouping whether its sequence is packed
whole or grew token by token, on pages of its own or on shared ones.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benthic.cache.places import CachePlaces
from benthic.cache.pools import CachePools, snapshot_of
from benthic.cache.ring_plan import (
    ChunkArrays,
    CompletedEntries,
    completed_entries,
    ring_writes,
    snapshot_writes,
    spans,
)
from benthic.cache.tables import PageTables
from benthic.cache.upload import upload
from benthic.kernels.compress_kv import CompletedBlocks
from benthic.kernels.entry_write import BlockEnds
from benthic.kernels.rope import RopeTable, rope_table
from benthic.kernels.sparse_attention import (
    DEFAULT_WORKSPACE_BYTES,
    IndexKeys,
    Keys,
    KeyTables,
    TilePlan,
    plan_tiles,
)
from benthic.models.beside import T, in_line
from benthic.models.config import ModelConfig
from benthic.models.context import LatentForm, Rows

Ints = npt.NDArray[np.int64]


class PagedContext:
    """`AttentionContext` over the cache of open request rows.

    Args:
        config: the model's.
        rows: the pass; `Chunk.sequence` is the request row, whose tables have pages and windows for every row.
        pools: the cache's tensors, with the manager's work for this pass applied; written in place.
        tables: the manager's page tables.
        frequencies: rotary frequencies by compression ratio, on the device. Layers of other ratios may not run: a
            pass of drafts names its block's alone.
        workspace_bytes: bound of attention's temporaries that grow with the context.
        in_place: layers write by operations that fuse what leads to an entry with its storage (`places`); else they
            hand entries to the `write_` methods. The same bits.
    """

    latent_form: LatentForm = "absorbed"

    def __init__(
        self,
        config: ModelConfig,
        rows: Rows,
        pools: CachePools,
        tables: PageTables,
        frequencies: Mapping[int, Tensor],
        *,
        workspace_bytes: int = DEFAULT_WORKSPACE_BYTES,
        in_place: bool = False,
    ) -> None:
        geometry = pools.geometry
        self.rows, self._pools, self.workspace_bytes = rows, pools, workspace_bytes
        chunks = ChunkArrays.of(rows.chunks)
        sequence, position = chunks.positions()
        self._arrays: dict[str, Ints] = {}
        if geometry.window:
            self._plan_window(tables.windows, sequence, position, frequencies.keys())
        if 1 in frequencies:
            assert (chunks.stored_len <= chunks.start).all(), "entries of the pass are stored already"
            self._arrays["entries 1"] = self._entry_places(tables.pages, sequence, position, 1)
        completed = {ratio: self._plan_ring(chunks, ratio) for ratio in sorted(frequencies) if ratio > 1}
        self._arrays["before"] = spans(np.zeros_like(chunks.length), chunks.length)
        for ratio, blocks in completed.items():
            self._arrays[f"entries {ratio}"] = self._entry_places(tables.pages, blocks.sequence, blocks.index, ratio)
        self._index = upload(self._arrays, pools.device)
        amplitude = config.rope_amplitude
        self._rope = {ratio: rope_table(rows.positions, f, amplitude) for ratio, f in frequencies.items()}
        self._completed = {r: self._completed_blocks(blocks, r) for r, blocks in completed.items() if len(blocks.index)}
        self._entry_rope = {r: rope_table(b.positions, frequencies[r], amplitude) for r, b in self._completed.items()}
        self._plans = self._plan_tiles(tables, sorted(frequencies))
        self.places = self._entry_places_of(frequencies, completed) if in_place and geometry.window else None

    def beside(self, work: Callable[[], T]) -> Callable[[], T]:
        """See `AttentionContext`: a pass of prompts fills the device."""
        return in_line(work)

    def rope(self, ratio: int) -> RopeTable:
        """Rotations of this pass's rows."""
        return self._rope[ratio]

    def entry_rope(self, ratio: int) -> RopeTable:
        """Rotations of the entries that this pass completes."""
        return self._entry_rope[ratio]

    def completed(self, ratio: int) -> CompletedBlocks | None:
        """The blocks of more than one token whose last token lies in this pass and which are not stored yet."""
        return self._completed.get(ratio)

    def plan(self, ratio: int) -> TilePlan:
        """Which keys each row may read."""
        return self._plans[ratio]

    def write_window(self, layer: int, entries: Tensor) -> Keys:
        """Stores kv entries of the real rows; returns the layer's kv buffer."""
        return self._store_kv(layer, 0, self._index["window"], entries[: self.rows.num_rows])

    def write_raw(self, layer: int, raw: Tensor) -> Tensor:
        """Keeps the last raw rows in the ring and those before a page boundary as its snapshot.

        Returns the rows that `completed(ratio).sources` index: the ring's history, then this pass's own.
        """
        kind, ring = self._pools.geometry.layers[layer], self._pools.rings[layer]
        assert ring is not None, f"layer {layer} has no compressor"
        index, ratio = self._index, kind.ratio
        history = index[f"history {ratio}"]
        # Gathered before anything is written: the ring needs no room for this pass's rows beside the history.
        found = torch.cat([ring.index_select(0, history), raw]) if len(history) else raw
        ring.index_copy_(0, index[f"ring slots {ratio}"], raw.index_select(0, index[f"ring rows {ratio}"]))
        snapshots = self._pools.snapshots[layer]
        if snapshots is not None and len(index["snapshot rows"]):
            halves = snapshot_of(raw.index_select(0, index["snapshot rows"]), kind)
            snapshots.index_copy_(0, index["snapshot slots"], halves)
        return found

    def write_entries(self, layer: int, entries: Tensor | None) -> Keys:
        """Stores completed entries, in layers of ratio 1 those of the real rows; returns the layer's kv buffer."""
        pools = self._pools
        if entries is None:
            return pools.storage.kv_keys(pools.kv[layer], pools.geometry.layers[layer])
        return self._store_kv(layer, pools.entry_base, self._entry_slots(layer), entries)

    def write_index(self, layer: int, entries: Tensor | None) -> IndexKeys:
        """Stores indexer keys likewise; returns their buffer."""
        storage, buffer = self._pools.storage, self._pools.index[layer]
        assert buffer is not None, f"layer {layer} has no indexer"
        if entries is not None:
            buffer.index_copy_(0, self._entry_slots(layer), storage.pack_index(entries))
        return storage.index_keys(buffer, self._pools.geometry.layers[layer])

    def _store_kv(self, layer: int, base: int, slots: Tensor, rows: Tensor) -> Keys:
        """Writes rows to slots counted from `base`."""
        storage, buffer = self._pools.storage, self._pools.kv[layer]
        buffer[base:].index_copy_(0, slots, storage.pack_kv(rows))
        return storage.kv_keys(buffer, self._pools.geometry.layers[layer])

    def _entry_slots(self, layer: int) -> Tensor:
        """Slots of the completed entries, counted from the first entry slot."""
        return self._index[f"entries {self._pools.geometry.layers[layer].ratio}"]

    def _plan_ring(self, chunks: ChunkArrays, ratio: int) -> CompletedEntries:
        """Adds the arrays of one ratio's ring; returns what completes."""
        geometry = self._pools.geometry
        overlap = any(layer.overlap for layer in geometry.layers if layer.ratio == ratio)
        ring_len = geometry.ring_len(ratio)
        completed = completed_entries(chunks, ratio, overlap=overlap, ring_len=ring_len)
        writes = ring_writes(chunks, ring_len)
        self._arrays |= {
            f"history {ratio}": completed.history,
            f"sources {ratio}": completed.sources,
            f"first tokens {ratio}": completed.index * ratio,
            f"ring rows {ratio}": writes.rows,
            f"ring slots {ratio}": writes.slots,
            f"last rows {ratio}": completed.sources[:, -1] - len(completed.history),
            f"rings {ratio}": np.repeat(chunks.sequence * ring_len, chunks.length),
        }
        return completed

    def _plan_window(self, windows: Ints, sequence: Ints, position: Ints, ratios: Collection[int]) -> None:
        """Adds the slots of the pass's kv rows, and of the rows that snapshots keep."""
        geometry = self._pools.geometry
        size = geometry.page_size
        window_id = _named(windows, sequence, position // size)
        self._arrays["window"] = window_id * size + position % size
        if any(layer.overlap and layer.ratio in ratios for layer in geometry.layers):
            snapshot = snapshot_writes(position, window_id, size)
            kept = np.full(len(position), -1, dtype=np.int64)
            kept[snapshot.rows] = snapshot.slots
            self._arrays |= {"snapshot rows": snapshot.rows, "snapshot slots": snapshot.slots, "snapshots": kept}

    def _entry_places(self, pages: Ints, sequence: Ints, index: Ints, ratio: int) -> Ints:
        """Slots of entries `index` of their sequences."""
        a_page = self._pools.geometry.entries_per_page(ratio)
        return _named(pages, sequence, index // a_page) * a_page + index % a_page

    def _completed_blocks(self, blocks: CompletedEntries, ratio: int) -> CompletedBlocks:
        tokens, sources = self._index[f"first tokens {ratio}"], self._index[f"sources {ratio}"]
        has_first = sources.shape[1] > ratio and bool((blocks.index == 0).any())
        first = (tokens == 0)[:, None, None] if has_first else None
        return CompletedBlocks(ratio, tokens, sources, first, blocks.sequence, blocks.index)

    def _entry_places_of(
        self, frequencies: Mapping[int, Tensor], completed: Mapping[int, CompletedEntries]
    ) -> CachePlaces:
        geometry, index = self._pools.geometry, self._index
        overlapping = {layer.ratio for layer in geometry.layers if layer.overlap}
        ends = {}
        for ratio in completed:
            rope = self._entry_rope.get(ratio)
            if rope is None:
                rope = rope_table(index[f"first tokens {ratio}"], frequencies[ratio], 1.0)
            ends[ratio] = BlockEnds(
                ratio=ratio,
                ring_len=geometry.ring_len(ratio),
                positions=self.rows.positions[: self.rows.num_rows],
                before=index["before"],
                rings=index[f"rings {ratio}"],
                snapshots=index["snapshots"] if ratio in overlapping else None,
                ends=index[f"last rows {ratio}"],
                slots=index[f"entries {ratio}"],
                rope=rope,
                by_rows=False,
            )
        return CachePlaces(self._pools, index["window"], ends)

    def _plan_tiles(self, tables: PageTables, ratios: list[int]) -> dict[int, TilePlan]:
        geometry = self._pools.geometry
        found = self._pools.device_tables(tables)
        key_tables = KeyTables(
            window=found.windows,
            window_page=geometry.page_size,
            entries={ratio: found.pages for ratio in geometry.ratios},
            entry_pages={ratio: geometry.entries_per_page(ratio) for ratio in geometry.ratios},
            entry_base=self._pools.entry_base,
        )
        return plan_tiles(
            self.rows.chunks,
            key_tables,
            ratios,
            window=geometry.window,
            num_rows=len(self.rows.positions),
            device=self._pools.device,
        )


def _named(table: Ints, sequence: Ints, page: Ints) -> Ints:
    """Ids of table cells that will be written to: never the null id, which belongs to nobody."""
    ids = table[sequence, page]
    assert ids.all(), "a row of the pass has no page or no window"
    return ids
