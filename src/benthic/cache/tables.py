"""Page tables: where each request row finds its pages and windows, by row and absolute page number; 0 is none."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


class PageTables:
    """`pages` and `windows`, int64 [num_rows, max_pages], written in place by the manager alone.

    Tensors made of them by `torch.from_numpy` see every change. A mirror on another device calls `take_changes`
    before each pass; changes are recorded from the first call on.
    """

    def __init__(self, num_rows: int, max_pages: int) -> None:
        self.pages: Ints = np.zeros((num_rows, max_pages), dtype=np.int64)
        self.windows: Ints = np.zeros((num_rows, max_pages), dtype=np.int64)
        self._changes: set[int] | None = None

    @property
    def max_pages(self) -> int:
        """Pages of the longest sequence."""
        return self.pages.shape[1]

    def take_changes(self) -> tuple[Ints, Ints]:
        """Rows and page numbers, int64 [n] each, of the cells that changed in either table since the last call.

        The first call returns every cell that is not zero.
        """
        if self._changes is None:
            rows, pages = np.nonzero(self.pages | self.windows)
            self._changes = set()
            return rows.astype(np.int64), pages.astype(np.int64)
        cells = np.fromiter(self._changes, np.int64, len(self._changes))
        self._changes.clear()
        return cells // self.max_pages, cells % self.max_pages

    def set_first_pages(self, row: int, page_ids: Sequence[int]) -> None:
        """Names the pages that a row begins with."""
        self.pages[row, : len(page_ids)] = page_ids
        self._mark(row, 0, len(page_ids))

    def set_page(self, row: int, page: int, page_id: int) -> None:
        """Names the entries' page of one cell."""
        self.pages[row, page] = page_id
        self._mark(row, page, page + 1)

    def set_window(self, row: int, page: int, window_id: int) -> None:
        """Names the window of one cell; 0 where no later token reads it."""
        self.windows[row, page] = window_id
        self._mark(row, page, page + 1)

    def clear(self, row: int, num_pages: int) -> None:
        """Empties the first cells of a row."""
        self.pages[row, :num_pages] = 0
        self.windows[row, :num_pages] = 0
        self._mark(row, 0, num_pages)

    def _mark(self, row: int, start: int, stop: int) -> None:
        if self._changes is not None:
            first = row * self.max_pages
            self._changes.update(range(first + start, first + stop))
