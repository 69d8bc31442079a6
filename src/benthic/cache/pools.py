"""The cache's tensors: kv rows, entries, indexer keys, compressor rings and boundary snapshots.

Layers of one kind share a stack [layers, slots, width], so that clearing or copying an id is one call a kind, not one
a layer. Within a layer's kv buffer the window slots come first and the entry slots follow: attention reads one buffer.

Law: all slots hold finite numbers before they change owner. They start as zeros, and what a failed request left (its
NaN would pass through a masked product) is cleared when the id is handed out again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.layout import SNAPSHOT_ROWS, LayerCache
from benthic.cache.storage import KeyStorage, Storage, key_storage
from benthic.cache.table_mirror import TableMirror
from benthic.cache.tables import PageTables
from benthic.cache.upload import upload
from benthic.cache.work import CacheWork, Copy, Restore

ALIGNMENT = 64
"""Bytes; as torch's own allocator."""


@dataclass(frozen=True, slots=True)
class LayerStack:
    """Buffers of all layers of one kind, layer first; None where the kind has none.

    `kv` [layers, slots, kv width]: window slots where there are windows, then entry slots. `index` [layers, entry
    slots, index width]; both in the form of the pools' storage. `rings` float32 [layers, num_rows * R, raw].
    `snapshots` float32 [layers, (num_windows + 1) * 4, half].
    """

    kind: LayerCache
    kv: Tensor
    index: Tensor | None
    rings: Tensor | None
    snapshots: Tensor | None


class CachePools:
    """Tensors of one cache. `kv[layer]`, `index[layer]`, `rings[layer]`, `snapshots[layer]`: main layers, then MTP.

    Args:
        dtype: of kv rows, entries and indexer keys as the model computes them.
        storage: "wide" keeps them in `dtype`; "official" in FP8 and FP4 (`cache.storage`).
        numerics: the model's policy.

    Raises:
        ConfigError: `storage` would lose bits of what a model of these numerics computes.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        capacity: CacheCapacity,
        *,
        dtype: torch.dtype,
        device: torch.device,
        storage: Storage = "wide",
        numerics: str = "plain",
    ) -> None:
        self.geometry, self.capacity, self.device = geometry, capacity, device
        self.storage = key_storage(storage, geometry, dtype, numerics)
        assert bool(geometry.window) == bool(capacity.num_windows), (geometry.window, capacity)
        self.entry_base = capacity.num_window_ids * geometry.page_size
        """First entry slot of every kv buffer."""
        kinds = list(dict.fromkeys(geometry.layers))
        self._stacks = [_stack(kind, geometry, capacity, self.storage, device) for kind in kinds]
        places = [(kinds.index(layer), geometry.layers[:n].count(layer)) for n, layer in enumerate(geometry.layers)]
        self.kv = [self._stacks[stack].kv[place] for stack, place in places]
        self.index = [_layer(self._stacks[stack].index, place) for stack, place in places]
        self.rings = [_layer(self._stacks[stack].rings, place) for stack, place in places]
        self.snapshots = [_layer(self._stacks[stack].snapshots, place) for stack, place in places]
        self._mirror: TableMirror | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._tensors())

    def touch(self) -> None:
        """Writes zeros everywhere: on the CPU, memory that was only promised is then really taken."""
        for tensor in self._tensors():
            tensor.zero_()

    def device_tables(self, tables: PageTables) -> TableMirror:
        """The page tables as tensors, up to date. A cache has one set of tables."""
        if self._mirror is None:
            self._mirror = TableMirror(tables, self.device)
        assert self._mirror.tables is tables, "these pools were used with other tables"
        self._mirror.update()
        return self._mirror

    def apply(self, work: CacheWork) -> None:
        """Clears, restores and copies, in this order; the next pass may then run."""
        if work.is_empty:
            return
        lists: dict[str, Sequence[int]] = {
            "pages": work.fresh_pages,
            "windows": work.fresh_windows,
            "rows": work.fresh_rows,
            **_ends("page", work.page_copies),
            **_ends("window", work.window_copies),
            **_ends("row", work.row_copies),
        }
        ids = upload({name: np.array(ids, dtype=np.int64) for name, ids in lists.items()}, self.device)
        for stack in self._stacks:
            for blocks in self._page_blocks(stack):
                _move(blocks, ids["pages"], ids["page_from"], ids["page_to"])
            for blocks in self._window_blocks(stack):
                _move(blocks, ids["windows"], ids["window_from"], ids["window_to"])
        self._clear_rings(ids["rows"])
        if work.restores:
            self._restore(work.restores)
        for blocks in self._ring_blocks():
            _copy(blocks, ids["row_from"], ids["row_to"])

    def _tensors(self) -> list[Tensor]:
        return [t for s in self._stacks for t in (s.kv, s.index, s.rings, s.snapshots) if t is not None]

    def _page_blocks(self, stack: LayerStack) -> list[Tensor]:
        """Entries and indexer keys by page id: views [layers, ids, numbers a page]."""
        if not stack.kind.ratio:
            return []
        ids = self.capacity.num_page_ids
        blocks = [_by_id(stack.kv[:, self.entry_base :], ids)]
        return blocks if stack.index is None else [*blocks, _by_id(stack.index, ids)]

    def _window_blocks(self, stack: LayerStack) -> list[Tensor]:
        """Window rows and snapshots by window id."""
        ids = self.capacity.num_window_ids
        if not ids:
            return []
        blocks = [_by_id(stack.kv[:, : self.entry_base], ids)]
        return blocks if stack.snapshots is None else [*blocks, _by_id(stack.snapshots, ids)]

    def _ring_blocks(self) -> list[Tensor]:
        """Rings by request row."""
        return [_by_id(stack.rings, self.capacity.num_rows) for stack in self._stacks if stack.rings is not None]

    def _clear_rings(self, rows: Tensor) -> None:
        if len(rows):
            for blocks in self._ring_blocks():
                blocks.index_fill_(1, rows, 0)

    def _restore(self, restores: Sequence[Restore]) -> None:
        """Puts each snapshot into the ring rows of the four positions before its boundary."""
        stacks = [stack for stack in self._stacks if stack.kind.overlap]
        if not stacks:
            return
        row, window, boundary = np.array(restores, dtype=np.int64).T[:, :, None]
        offset = np.arange(SNAPSHOT_ROWS)
        position = boundary - SNAPSHOT_ROWS + offset
        arrays = {"from": (window * SNAPSHOT_ROWS + offset).reshape(-1)}
        for ratio in {stack.kind.ratio for stack in stacks}:
            ring_len = self.geometry.ring_len(ratio)
            arrays[f"to {ratio}"] = (row * ring_len + position % ring_len).reshape(-1)
        slots = upload(arrays, self.device)
        for stack in stacks:
            assert stack.rings is not None and stack.snapshots is not None
            halves = stack.snapshots.index_select(1, slots["from"])
            put_snapshot(stack.rings, slots[f"to {stack.kind.ratio}"], halves, stack.kind)


def snapshot_of(raw: Tensor, kind: LayerCache) -> Tensor:
    """The half of raw rows [n, raw] that the next block reads: [n, half]."""
    return torch.cat([raw[:, columns] for columns in kind.snapshot_columns], dim=-1)


def put_snapshot(rings: Tensor, slots: Tensor, halves: Tensor, kind: LayerCache) -> None:
    """Writes halves [layers, n, half] into their columns of rings [layers, ring slots, raw]."""
    first = 0
    for columns in kind.snapshot_columns:
        width = columns.stop - columns.start
        rings[:, :, columns].index_copy_(1, slots, halves[:, :, first : first + width])
        first += width


def _stack(
    kind: LayerCache, geometry: CacheGeometry, capacity: CacheCapacity, storage: KeyStorage, device: torch.device
) -> LayerStack:
    layers = geometry.layers.count(kind)
    windows = capacity.num_window_ids * geometry.page_size
    entries = capacity.num_page_ids * geometry.entries_per_page(kind.ratio) if kind.ratio else 0
    rings = snapshots = None
    if kind.compresses:
        rings = _zeros((layers, capacity.num_rows * geometry.ring_len(kind.ratio), kind.raw), torch.float32, device)
    if kind.overlap:
        slots = capacity.num_window_ids * SNAPSHOT_ROWS
        snapshots = _zeros((layers, slots, kind.snapshot), torch.float32, device)
    return LayerStack(
        kind=kind,
        kv=_zeros((layers, windows + entries, storage.kv_width(kind)), storage.element, device),
        index=_zeros((layers, entries, storage.index_width(kind)), storage.element, device) if kind.index else None,
        rings=rings,
        snapshots=snapshots,
    )


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that on CPU take memory only once they are written: pages of the system, aligned as torch's own."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    pages = np.zeros(num_bytes + ALIGNMENT, dtype=np.uint8)
    start = -pages.ctypes.data % ALIGNMENT
    return torch.from_numpy(pages[start : start + num_bytes]).view(dtype).view(shape)


def _layer(stack: Tensor | None, place: int) -> Tensor | None:
    return None if stack is None else stack[place]


def _ends(name: str, copies: Sequence[Copy]) -> dict[str, Sequence[int]]:
    return {f"{name}_from": [copy.source for copy in copies], f"{name}_to": [copy.target for copy in copies]}


def _by_id(stack: Tensor, num_ids: int) -> Tensor:
    """[layers, slots, width] -> a view [layers, ids, slots an id * width]."""
    return stack.view(len(stack), num_ids, -1)


def _move(blocks: Tensor, cleared: Tensor, sources: Tensor, targets: Tensor) -> None:
    if len(cleared):
        blocks.index_fill_(1, cleared, 0)
    _copy(blocks, sources, targets)


def _copy(blocks: Tensor, sources: Tensor, targets: Tensor) -> None:
    if len(sources):
        blocks.index_copy_(1, targets, blocks.index_select(1, sources))
