"""The attention context of passes of single rows: decoding and verification, planned where the pass runs.

Shapes follow from the number of rows and from the longest context allowed; everything else is read from buffers whose
addresses stay. A pass can therefore be captured once and replayed for other rows. Rows keep the keys, the order and so
the bits that they have under `PagedContext`; dummies read what row 0 reads and write nowhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benthic.cache.geometry import CacheGeometry
from benthic.cache.layout import SNAPSHOT_ROWS
from benthic.cache.places import CachePlaces
from benthic.cache.pools import CachePools, snapshot_of
from benthic.cache.table_mirror import TableMirror
from benthic.kernels.compress_kv import CompletedBlocks
from benthic.kernels.entry_write import BlockEnds
from benthic.kernels.pass_plan import DrawPlan, PlanShape, RatioShape, RowPlan
from benthic.kernels.rope import RopeTable
from benthic.kernels.scatter_rows import scatter_rows
from benthic.kernels.sparse_attention import IndexKeys, Keys, KeyTables, TilePlan
from benthic.kernels.sparse_attention.plan import TileTensors, tile_plans
from benthic.models.beside import Beside, T, in_line
from benthic.models.context import LatentForm, Rows

_NO_BLOCKS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class RowTables:
    """Rotary frequencies without repetition: `frequencies` float32 [tables, pairs], `table[ratio]` the one to use."""

    frequencies: Tensor
    table: Mapping[int, int]

    @classmethod
    def of(cls, frequencies: Mapping[int, Tensor]) -> "RowTables":
        """Those of all layers, by compression ratio."""
        found: list[Tensor] = []
        table = {}
        for ratio, own in sorted(frequencies.items()):
            same = [number for number, known in enumerate(found) if torch.equal(known, own)]
            table[ratio] = same[0] if same else len(found)
            if not same:
                found.append(own)
        return cls(torch.stack(found).contiguous(), table)


def plan_shape(geometry: CacheGeometry, tables: RowTables, amplitude: float) -> PlanShape:
    """What plans of this cache have in common."""
    overlapping = {layer.ratio for layer in geometry.layers if layer.overlap}
    ratios = tuple(
        RatioShape(
            ratio=ratio,
            reach=ratio if ratio in overlapping else 0,
            ring_len=geometry.ring_len(ratio) if ratio > 1 else 0,
            table=tables.table[ratio],
        )
        for ratio in geometry.ratios
    )
    num_tables, num_pairs = tables.frequencies.shape
    snapshot_rows = SNAPSHOT_ROWS if overlapping else 0
    return PlanShape(geometry.page_size, geometry.window > 0, snapshot_rows, ratios, num_tables, num_pairs, amplitude)


class RowContext:
    """`AttentionContext` of R rows that each are a tile of their own.

    Args:
        plan: of these rows; its buffers are filled before the first layer runs.
        pools: the cache's tensors, written in place.
        mirror: the page tables where the pass runs.
        table: which of the plan's rotations layers of a ratio turn by.
        max_len: no row lies at this position or behind it.
        workspace_bytes: bound of attention's temporaries that grow with the context.
        in_place: see `PagedContext`.
        beside: how branches of layers run.
    """

    latent_form: LatentForm = "absorbed"

    def __init__(
        self,
        plan: RowPlan,
        pools: CachePools,
        mirror: TableMirror,
        table: Mapping[int, int],
        max_len: int,
        *,
        workspace_bytes: int,
        in_place: bool = False,
        beside: Beside = in_line,
    ) -> None:
        self.rows = Rows(plan.token_ids, plan.positions, len(plan.token_ids), ())
        self.workspace_bytes = workspace_bytes
        self._plan, self._pools, self._table, self._beside = plan, pools, table, beside
        self._tiles = self._plan_tiles(mirror, max_len)
        self.places = self._places_of() if in_place and pools.geometry.window else None

    @property
    def draw(self) -> DrawPlan:
        """How tokens are drawn from the rows."""
        return self._plan.draw

    def beside(self, work: Callable[[], T]) -> Callable[[], T]:
        """See `AttentionContext`."""
        return self._beside(work)

    def rope(self, ratio: int) -> RopeTable:
        """See `AttentionContext`."""
        return self._plan.ropes[self._table[ratio]]

    def entry_rope(self, ratio: int) -> RopeTable:
        """See `AttentionContext`. Of every row's block, complete or not."""
        return self._plan.entries[ratio].rope

    def completed(self, ratio: int) -> CompletedBlocks | None:
        """See `AttentionContext`. Every row's block, complete or not: those that are not are stored nowhere."""
        entry = self._plan.entries.get(ratio)
        if entry is None:
            return None
        first = entry.is_first if entry.sources.shape[1] > ratio else None
        return CompletedBlocks(ratio, entry.first_tokens, entry.sources, first, _NO_BLOCKS, _NO_BLOCKS)

    def plan(self, ratio: int) -> TilePlan:
        """See `AttentionContext`."""
        return self._tiles[ratio]

    def write_window(self, layer: int, entries: Tensor) -> Keys:
        """See `AttentionContext`."""
        return self._store_kv(layer, 0, self._plan.window_slots, entries)

    def write_raw(self, layer: int, raw: Tensor) -> Tensor:
        """See `AttentionContext`. The rows go into the ring first, and `completed(ratio).sources` point there alone."""
        kind, ring = self._pools.geometry.layers[layer], self._pools.rings[layer]
        assert ring is not None, f"layer {layer} has no compressor"
        scatter_rows(ring, self._plan.entries[kind.ratio].ring_slots, raw)
        snapshots = self._pools.snapshots[layer]
        if snapshots is not None:
            scatter_rows(snapshots, self._plan.snapshot_slots, snapshot_of(raw, kind))
        return ring

    def write_entries(self, layer: int, entries: Tensor | None) -> Keys:
        """See `AttentionContext`."""
        pools = self._pools
        if entries is None:
            return pools.storage.kv_keys(pools.kv[layer], pools.geometry.layers[layer])
        return self._store_kv(layer, pools.entry_base, self._entry_slots(layer), entries)

    def write_index(self, layer: int, entries: Tensor | None) -> IndexKeys:
        """See `AttentionContext`."""
        storage, buffer = self._pools.storage, self._pools.index[layer]
        assert buffer is not None, f"layer {layer} has no indexer"
        if entries is not None:
            scatter_rows(buffer, self._entry_slots(layer), storage.pack_index(entries))
        return storage.index_keys(buffer, self._pools.geometry.layers[layer])

    def _places_of(self) -> CachePlaces:
        geometry, plan = self._pools.geometry, self._plan
        overlapping = {layer.ratio for layer in geometry.layers if layer.overlap}
        ends = {
            ratio: BlockEnds(
                ratio=ratio,
                ring_len=geometry.ring_len(ratio),
                positions=plan.positions,
                before=plan.before,
                rings=entry.rings,
                snapshots=plan.snapshot_slots if ratio in overlapping else None,
                ends=entry.ends,
                slots=entry.slots,
                rope=entry.rope,
                by_rows=True,
            )
            for ratio, entry in plan.entries.items()
        }
        return CachePlaces(self._pools, plan.window_slots, ends)

    def _store_kv(self, layer: int, base: int, slots: Tensor, rows: Tensor) -> Keys:
        storage, buffer = self._pools.storage, self._pools.kv[layer]
        scatter_rows(buffer[base:], slots, storage.pack_kv(rows))
        return storage.kv_keys(buffer, self._pools.geometry.layers[layer])

    def _entry_slots(self, layer: int) -> Tensor:
        """Slots of the rows' entries, counted from the first entry slot."""
        ratio = self._pools.geometry.layers[layer].ratio
        return self._plan.token_slots if ratio == 1 else self._plan.entries[ratio].slots

    def _plan_tiles(self, mirror: TableMirror, max_len: int) -> dict[int, TilePlan]:
        geometry, plan = self._pools.geometry, self._plan
        order = torch.arange(len(plan.token_ids), device=plan.token_ids.device)
        tiles = TileTensors(
            rows=order[:, None],
            positions=plan.positions[:, None],
            used=torch.ones_like(order),
            sequence=plan.request_rows,
            last_position=max_len - 1,
        )
        tables = KeyTables(
            window=mirror.windows,
            window_page=geometry.page_size,
            entries={ratio: mirror.pages for ratio in geometry.ratios},
            entry_pages={ratio: geometry.entries_per_page(ratio) for ratio in geometry.ratios},
            entry_base=self._pools.entry_base,
        )
        return tile_plans([tiles], order, tables, geometry.layer_ratios, window=geometry.window, is_in_order=True)
