"""The page tables as tensors where attention runs."""

import torch

from benthic.cache.tables import PageTables
from benthic.cache.upload import upload


class TableMirror:
    """`pages` and `windows`, int64 [num_rows, max_pages], on a device.

    On the CPU they are the manager's own memory. Elsewhere they are copies, and `update` brings over the cells that
    changed: it is queued like a kernel, so passes that were launched before still see the tables as they were.

    Args:
        is_copy: False shares memory; None does so where it can.
    """

    def __init__(self, tables: PageTables, device: torch.device, *, is_copy: bool | None = None) -> None:
        self.tables = tables
        self._is_shared = device.type == "cpu" if is_copy is None else not is_copy
        self.pages = torch.from_numpy(tables.pages)
        self.windows = torch.from_numpy(tables.windows)
        if not self._is_shared:
            self.pages = torch.zeros_like(self.pages, device=device)
            self.windows = torch.zeros_like(self.windows, device=device)

    def update(self) -> None:
        """Makes the tensors equal to the tables, in time that follows from the number of changed cells."""
        if self._is_shared:
            return
        rows, numbers = self.tables.take_changes()
        if not len(rows):
            return
        cells = rows * self.tables.max_pages + numbers
        moved = upload(
            {"cells": cells, "pages": self.tables.pages[rows, numbers], "windows": self.tables.windows[rows, numbers]},
            self.pages.device,
        )
        self.pages.view(-1).index_copy_(0, moved["cells"], moved["pages"])
        self.windows.view(-1).index_copy_(0, moved["cells"], moved["windows"])
