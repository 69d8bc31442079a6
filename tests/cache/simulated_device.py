"""A device whose memory holds fingerprints: what a slot contains says which tokens it was computed from.

It works against the bookkeeping: queued work is done as early as allowed (at the launch of a pass), a pass reads and
writes as late as allowed (when it ends). Whatever the fence, locks or clears fail to protect is then seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benthic.cache.geometry import CacheGeometry
from benthic.cache.work import CacheWork

INEXACT = "computed without its whole window"
Slot = int | str | None

RATIOS_OVERLAP, RATIO_LONG = 4, 16


@dataclass(frozen=True)
class PassRow:
    """One sequence's part of a pass, with its tables as they were at the launch."""

    index: int
    start: int
    length: int
    stored_len: int
    replayed_to: int
    """Windows before this position, minus the window, are inexact: the row replays up to here; 0 if it does not."""
    pages: npt.NDArray[np.int64]
    windows: npt.NDArray[np.int64]


class SimulatedDevice:
    """Pages, windows and rings by id, each a list of slots; a geometry without windows has no rings either."""

    def __init__(self, geometry: CacheGeometry) -> None:
        self.geometry = geometry
        self.pages: dict[int, list[Slot]] = {}
        self.windows: dict[int, list[Slot]] = {}
        self.rings: dict[int, dict[int, tuple[int, Slot]]] = {}
        self.ring_len = geometry.ring_len(RATIO_LONG)

    def apply(self, work: CacheWork) -> None:
        """Clears, restores and copies, in this order."""
        size = self.geometry.page_size
        for ids in (work.fresh_pages, work.fresh_windows, work.fresh_rows):
            assert len(set(ids)) == len(ids), "an id is fresh twice"
        self.pages.update((page, [None] * size) for page in work.fresh_pages)
        self.windows.update((window, [None] * size) for window in work.fresh_windows)
        self.rings.update((row, {}) for row in work.fresh_rows)
        for restore in work.restores:
            assert restore.row in work.fresh_rows
            for position in range(restore.position - 4, restore.position):
                self._write_ring(restore.row, position, self.windows[restore.window][position % size])
        for memory, copies in ((self.pages, work.page_copies), (self.windows, work.window_copies)):
            assert not {copy.target for copy in copies} & {copy.source for copy in copies}
            for source, target in copies:
                memory[target] = list(memory[source])
        for source, target in work.row_copies:
            self.rings[target] = dict(self.rings[source])

    def run(self, row: PassRow, prints: Sequence[int]) -> None:
        """Reads what the row's queries read, which must be exact; then writes. `prints`: fingerprints by position."""
        self._read_entries(row, prints)
        has_windows = self.geometry.window > 0
        if has_windows:
            self._read_windows(row, prints)
            self._read_ring(row, prints)
        size, exact = self.geometry.page_size, row.replayed_to - self.geometry.window
        for position in range(row.start, row.start + row.length):
            page, slot = divmod(position, size)
            is_exact = not row.replayed_to or position >= exact
            value: Slot = prints[position] if is_exact else INEXACT
            if has_windows:
                self._slots(self.windows, row.windows, page)[slot] = value
                self._write_ring(row.index, position, value)
            if position >= row.stored_len:
                self._slots(self.pages, row.pages, page)[slot] = prints[position]

    def unwritten(self, ids: npt.NDArray[np.int64], memory: dict[int, list[Slot]], start: int, stop: int) -> bool:
        """Whether nobody has written positions start .. stop-1 since their ids were handed out."""
        size = self.geometry.page_size
        return all(self._slots(memory, ids, p // size)[p % size] is None for p in range(start, stop))

    @staticmethod
    def _slots(memory: dict[int, list[Slot]], ids: npt.NDArray[np.int64], page: int) -> list[Slot]:
        found = memory.get(int(ids[page]))
        assert found is not None, "a table names an id that was never cleared, or none"
        return found

    def _read_entries(self, row: PassRow, prints: Sequence[int]) -> None:
        size, end = self.geometry.page_size, max(row.start, row.stored_len)
        for page in range(-(-end // size)):
            stop = min(end, (page + 1) * size)
            cached = self._slots(self.pages, row.pages, page)[: stop - page * size]
            assert cached == list(prints[page * size : stop]), "a query reads entries of other tokens"

    def _read_windows(self, row: PassRow, prints: Sequence[int]) -> None:
        """Queries before `stored_len` of a replay may read less: they only feed rows that are not exact anyway."""
        size = self.geometry.page_size
        first_exact = max(row.start, row.stored_len) if row.replayed_to else row.start
        for position in range(max(0, first_exact - self.geometry.window + 1), row.start):
            cached = self._slots(self.windows, row.windows, position // size)[position % size]
            assert cached == prints[position], "a query reads a window of other tokens"

    def _read_ring(self, row: PassRow, prints: Sequence[int]) -> None:
        if row.start + row.length <= row.stored_len:
            return
        block = max(row.start, row.stored_len)
        overlap = block // RATIOS_OVERLAP * RATIOS_OVERLAP - RATIOS_OVERLAP
        for position in range(max(0, min(overlap, block // RATIO_LONG * RATIO_LONG)), row.start):
            if position >= overlap or position >= block // RATIO_LONG * RATIO_LONG:
                found = self.rings[row.index].get(position % self.ring_len)
                assert found == (position, prints[position]), "a compressor reads raw rows of other tokens"

    def _write_ring(self, row: int, position: int, value: Slot) -> None:
        self.rings[row][position % self.ring_len] = (position, value)
