"""Device work that the bookkeeping has promised: collected between passes, taken once a pass."""

from typing import NamedTuple

from benthic.cache.ids import Fence
from benthic.cache.work import CacheWork, Copy, Restore


class ForkCopies(NamedTuple):
    """What a forked row needs of the row that it came from."""

    pages: tuple[Copy, ...]
    windows: tuple[Copy, ...]
    ring: Copy


class WorkQueue:
    """Law: an id handed out since the last `take` is fresh exactly once.

    While copies are queued they hold the fence, so that what they read is not handed out, hence not cleared.
    """

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._pages: dict[int, None] = {}
        self._windows: dict[int, None] = {}
        self._restores: dict[int, Restore | None] = {}
        self._forks: dict[int, ForkCopies] = {}
        self._holder: int | None = None

    def add_page(self, page: int) -> None:
        """A page was handed out."""
        self._pages[page] = None

    def add_window(self, window: int) -> None:
        """A window was handed out."""
        self._windows[window] = None

    def add_row(self, row: int, restore: Restore | None) -> None:
        """A row was handed out; its ring begins empty or with a snapshot."""
        self._restores[row] = restore

    def add_fork(self, copies: ForkCopies) -> None:
        """A row continues another. Where that one's copies are queued still, it is copied from where they come from."""
        earlier = self._forks.values()
        pages = {copy.target: copy.source for fork in earlier for copy in fork.pages}
        windows = {copy.target: copy.source for fork in earlier for copy in fork.windows}
        ring = {fork.ring.target: fork.ring.source for fork in earlier}
        self._forks[copies.ring.target] = ForkCopies(
            tuple(Copy(pages.get(source, source), target) for source, target in copies.pages),
            tuple(Copy(windows.get(source, source), target) for source, target in copies.windows),
            Copy(ring.get(copies.ring.source, copies.ring.source), copies.ring.target),
        )
        self._hold_fence()

    def cancel_fork(self, row: int) -> None:
        """The row ends before its copies were made."""
        if self._forks.pop(row, None) is not None and not self._forks:
            self._let_go()

    def cancel_restore(self, row: int) -> None:
        """The row has ended: the window that it began with may be anybody's."""
        if row in self._restores:
            self._restores[row] = None

    def take(self) -> CacheWork:
        """Everything since the last call."""
        forks = self._forks.values()
        work = CacheWork(
            fresh_pages=tuple(self._pages),
            fresh_windows=tuple(self._windows),
            fresh_rows=tuple(self._restores),
            restores=tuple(restore for restore in self._restores.values() if restore is not None),
            page_copies=tuple(copy for fork in forks for copy in fork.pages),
            window_copies=tuple(copy for fork in forks for copy in fork.windows),
            row_copies=tuple(fork.ring for fork in forks),
        )
        self._pages.clear()
        self._windows.clear()
        self._restores.clear()
        if self._forks:
            self._forks.clear()
            self._let_go()
        return work

    def _hold_fence(self) -> None:
        if self._holder is None:
            self._holder = self._fence.begin()

    def _let_go(self) -> None:
        if self._holder is not None:
            holder, self._holder = self._holder, None
            self._fence.end(holder)
