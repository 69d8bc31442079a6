"""Who holds which page and window. Pure bookkeeping: ids only, no tensors, no clock.

Shared state (the trie) is immutable and of whole pages; mutable state is private to a row. A page is shared as soon as
it is full and committed. What a row no longer reads goes to the trie or back to its pool; what a pass in flight may
read is not handed out before that pass has ended. While nothing is due, `room`, `grow` and `commit` compare two
numbers, whatever the length of the context.
"""

import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from benthic.cache.geometry import CacheCapacity, CacheGeometry
from benthic.cache.ids import Fence, IdPool
from benthic.cache.laws import check_rows, check_trie
from benthic.cache.prefix import begin_row, match_prefix
from benthic.cache.retention import Retention
from benthic.cache.row import Row
from benthic.cache.tables import PageTables
from benthic.cache.trie import Namespace, PageNode, PageTrie, page_key
from benthic.cache.work import CacheCounts, CacheStats, CacheWork, Copy, Match, PoolStats, Restore
from benthic.cache.work_queue import ForkCopies, WorkQueue


class CacheManager:
    """Matches, opens, grows, commits, forks and closes request rows over one pool of pages and one of windows.

    A sequence that is alone always has room up to `largest_len`, whatever is cached.

    Args:
        keeps_extras: what `commit` is given beside the tokens is kept with the pages.
    """

    def __init__(
        self,
        geometry: CacheGeometry,
        capacity: CacheCapacity,
        retention: Retention,
        *,
        keeps_extras: bool = False,
    ) -> None:
        assert bool(geometry.window) == bool(capacity.num_windows), (geometry.window, capacity)
        self.geometry = geometry
        self.capacity = capacity
        self.tables = PageTables(capacity.num_rows, geometry.num_pages(capacity.max_len))
        self.trie = PageTrie(geometry.page_size, geometry.window_pages)
        self.fence = Fence()
        self.pages = IdPool(capacity.num_pages, self.fence)
        self.windows = IdPool(capacity.num_windows, self.fence)
        self.rows = IdPool(capacity.num_rows, self.fence, first=0)
        self.open_rows: dict[int, Row] = {}
        """All rows by index, those included that were closed under a pass in flight."""
        self.left_windows: list[PageNode] = []
        """Nodes whose window a row has moved on from while a pass was in flight: locked until that has ended."""
        self._retention = retention
        self._keeps_extras = keeps_extras
        self._page_size = geometry.page_size
        self._window_pages = geometry.window_pages
        self._queue = WorkQueue(self.fence)
        self._passes: deque[tuple[int, int]] = deque()
        self._private_names = count()
        self._counts = CacheCounts()

    @property
    def largest_len(self) -> int:
        """The longest sequence that this cache can hold; 0 if there are too few windows for any."""
        enough = not self._window_pages or self.capacity.num_windows > self._window_pages
        return min(self.capacity.max_len, self.capacity.num_pages * self._page_size) if enough else 0

    @property
    def available_pages(self) -> int:
        """Pages that are free or held by nobody."""
        return self.pages.num_free + self.trie.evictable_pages

    @property
    def available_windows(self) -> int:
        """Windows that are free or held by nobody; where there are no windows, nobody is ever short of them."""
        return self.windows.num_free + self.trie.evictable_windows if self._window_pages else sys.maxsize

    def match(self, tokens: Sequence[int], namespace: Namespace, *, need_extras: bool = False) -> Match:
        """How much of `tokens` is cached. Changes nothing; at least one token is left to compute."""
        return match_prefix(self.trie, tokens, namespace, need_extras=need_extras)[0]

    def open(
        self,
        tokens: Sequence[int],
        prompt_len: int,
        namespace: Namespace,
        *,
        use_cache: bool = True,
        need_extras: bool = False,
    ) -> Row | None:
        """Gives a sequence a row and everything of it that is cached.

        Args:
            tokens: all known tokens: the prompt, and the output so far where a retracted request resumes.
            prompt_len: tokens of the prompt itself: retention keeps the window at its end.
            namespace: weights and salt: (fingerprint, weight version, salt).
            use_cache: False takes nothing from the cache and leaves nothing there; only forks of the row share its
                pages, which go with the last of them.
            need_extras: only pages that have extras are reused.

        Returns:
            None where no row is free or there is no room for a page and a window; nothing has changed then
            but the age of the pages that matched.
        """
        if not (self.rows.num_free and self.available_pages and self.available_windows):
            return None
        if use_cache:
            match, path = match_prefix(self.trie, tokens, namespace, need_extras=need_extras)
        else:
            match, path, namespace = Match(0, 0, "not asked"), [], ("private", next(self._private_names))
        root = self.trie.root(namespace)
        row = begin_row(self.geometry, match, path, root, prompt_len=prompt_len, is_private=not use_cache)
        self._lock(row)
        if self.room(row, row.start_len + 1) <= row.start_len:
            self._unlock(row)
            return None
        is_hit = row.start_len == match.usable_len > 0
        self._take_row(row, restore_window=path[row.num_completed - 1].window if is_hit else 0)
        if is_hit:
            self.trie.touch(path[: row.num_completed])
        self._counts.num_opens += 1
        self._counts.num_replays += row.start_len > match.usable_len
        self._counts.asked_len += len(tokens)
        self._counts.compressed_len += match.compressed_len
        self._counts.usable_len += match.usable_len
        return row

    def room(self, row: Row, want_len: int) -> int:
        """The longest length <= want_len that `grow` can reach now, evicting what nobody holds. Changes nothing."""
        if want_len <= row.allocated_len:
            return want_len
        begun = row.allocated_len // self._page_size
        pages = max(begun, len(row.path)) + self.available_pages
        windows = begun + self.available_windows
        return min(want_len, min(pages, windows) * self._page_size, self.capacity.max_len)

    def grow(self, row: Row, new_len: int) -> None:
        """Gives the row pages and windows for positions before `new_len`; `room` must have said that it can."""
        if new_len <= row.allocated_len:
            return
        assert row.is_open, "a closed row grows"
        assert self.room(row, new_len) == new_len, f"there is no room for {new_len} tokens"
        first, last = row.allocated_len // self._page_size, self.geometry.num_pages(new_len)
        for page in range(first, last):
            if page >= len(row.path):
                self.tables.set_page(row.index, page, self._take_page())
            if page >= row.first_window:
                self.tables.set_window(row.index, page, self._take_window())
        row.allocated_len = last * self._page_size

    def commit(
        self,
        row: Row,
        new_len: int,
        tokens: Sequence[int],
        extras: Callable[[int], object] | None = None,
    ) -> None:
        """Declares positions before `new_len` computed and final, and shares the pages that this completes.

        Args:
            tokens: the sequence's tokens, at least `new_len`; read only where a page completes.
            extras: called with each completed page's number; what it returns is kept with the page, never changed.
        """
        assert row.committed_len <= new_len <= row.allocated_len or new_len == row.committed_len, new_len
        row.committed_len = new_len
        if new_len < row.next_page_end:
            return
        assert row.is_open, "a closed row commits"
        for page in range(row.num_completed, self._num_shareable(row)):
            self._complete_page(row, page, tokens, extras if self._keeps_extras else None)
        row.next_page_end = (row.num_completed + 1) * self._page_size
        for page in range(row.first_window, row.num_completed - self._window_pages):
            self._slide(row, page)

    def fork(self, row: Row) -> Row | None:
        """A second row in the same committed state, at any length. None: no row is free, or no room for the copies.

        Device copies are queued; both rows may go on at once, from equal tokens up to max(committed_len, stored_len).
        At most max_draft_len + 1 positions of `row` may be in flight: a ring has no more to spare.
        """
        assert row.is_open, "a closed row is forked"
        last = min(self.geometry.num_pages(row.committed_len), row.allocated_len // self._page_size)
        own_pages = list(range(len(row.path), last))
        own_windows = [page for page in range(row.first_window, last) if page not in row.shared_windows]
        has_room = self.available_pages >= len(own_pages) and self.available_windows >= len(own_windows)
        if not (self.rows.num_free and has_room):
            return None
        child = row.copy(last * self._page_size)
        self._lock(child)
        self._take_row(child, restore_window=0)
        for page in own_pages:
            self.tables.set_page(child.index, page, self._take_page())
        for page in own_windows:
            self.tables.set_window(child.index, page, self._take_window())
        tables, source, target = self.tables, row.index, child.index
        self._queue.add_fork(
            ForkCopies(
                tuple(Copy(int(tables.pages[source, p]), int(tables.pages[target, p])) for p in own_pages),
                tuple(Copy(int(tables.windows[source, p]), int(tables.windows[target, p])) for p in own_windows),
                Copy(source, target),
            )
        )
        return child

    def close(self, row: Row, *, finished: bool) -> None:
        """Ends a row at any moment, also with a pass in flight.

        Args:
            finished: the output is complete: its end is a checkpoint. False for abort and retraction: the last
                window stays as long as nobody needs the room.
        """
        assert row.is_open, "a row is closed twice"
        row.is_open = False
        self._queue.cancel_fork(row.index)
        self.fence.run_after(lambda: self._release(row, finished))

    def row_extras(self, row: Row) -> list[object]:
        """Extras of the pages that were cached when the row was opened: positions before `stored_len`, in order."""
        return [node.extras for node in row.path[: row.stored_len // self._page_size]]

    def flush(self, keep_namespaces: Sequence[Namespace] = ()) -> None:
        """Evicts everything that nobody holds, except in the given namespaces."""
        for namespace, root in list(self.trie.roots.items()):
            if namespace not in keep_namespaces:
                self._flush(root)

    def begin_pass(self, step: int) -> None:
        """A pass was launched: ids freed from now on are not handed out before it has ended. Steps ascend."""
        assert not self._passes or step > self._passes[-1][0], f"pass {step} begins after pass {self._passes[-1][0]}"
        self._passes.append((step, self.fence.begin()))

    def end_pass(self, step: int) -> None:
        """The oldest pass in flight has ended."""
        oldest, holder = self._passes.popleft()
        assert step == oldest, f"pass {step} ends before pass {oldest}"
        self.fence.end(holder)

    def take_work(self) -> CacheWork:
        """The device work since the last call; it must be done before the next pass. Call it in every step."""
        return self._queue.take()

    def check(self) -> None:
        """Asserts every structural and conservation law, and recomputes all counters. Slow: for tests and idling."""
        rows, nodes = list(self.open_rows.values()), list(self.trie.nodes())
        check_trie(self.trie, rows, self.left_windows, self._page_size)
        check_rows(rows, self.tables, self.geometry)
        own = [(row, page) for row in rows for page in range(row.allocated_len // self._page_size)]
        pages = [int(self.tables.pages[row.index, page]) for row, page in own if page >= len(row.path)]
        windows = [
            int(self.tables.windows[row.index, page])
            for row, page in own
            if page >= row.first_window and page not in row.shared_windows
        ]
        self.pages.check(pages + [node.page for node in nodes])
        self.windows.check(windows + [node.window for node in nodes if node.window])
        self.rows.check(list(self.open_rows))

    def stats(self) -> CacheStats:
        """Counts of now and since the start."""
        trie = self.trie
        return CacheStats(
            pages=_pool_stats(self.pages, trie.num_pages, trie.evictable_pages),
            windows=_pool_stats(self.windows, trie.num_windows, trie.evictable_windows),
            num_rows=len(self.open_rows),
            num_namespaces=len(trie.roots),
            num_checkpoints=trie.num_checkpoints,
            counts=replace(self._counts),
        )

    # Opening and closing

    def _lock(self, row: Row) -> None:
        self.trie.lock_path(row.root, row.path)
        for page in row.shared_windows:
            self.trie.lock_window(row.path[page])

    def _unlock(self, row: Row) -> None:
        for page in row.shared_windows:
            self.trie.unlock_window(row.path[page])
        self.trie.unlock_path(row.root, row.path)

    def _take_row(self, row: Row, *, restore_window: int) -> None:
        """Gives a row its index; its tables name what it shares."""
        index = row.index = self.rows.take()
        self.open_rows[index] = row
        self._queue.add_row(index, Restore(index, restore_window, row.start_len) if restore_window else None)
        self.tables.set_first_pages(index, [node.page for node in row.path])
        for page in row.shared_windows:
            self.tables.set_window(index, page, row.path[page].window)

    def _release(self, row: Row, finished: bool) -> None:
        """Nobody reads the row any more: its own ids are free, the trie's are unlocked."""
        keeps = self._retention.keeps_last and not row.is_private
        last = row.allocated_len // self._page_size
        for page in range(row.first_window, last):
            if page in row.shared_windows:
                is_checkpoint = (finished and keeps) or self._is_checkpoint(row, page)
                self._settle_window(row.path[page], is_checkpoint, is_kept=keeps)
            else:
                self.windows.free_now(int(self.tables.windows[row.index, page]))
        for page in range(len(row.path), last):
            self.pages.free_now(int(self.tables.pages[row.index, page]))
        self.trie.unlock_path(row.root, row.path)
        if row.is_private and not row.root.locks:
            self._flush(row.root)
        self._queue.cancel_restore(row.index)
        self.tables.clear(row.index, max(last, len(row.path)))
        del self.open_rows[row.index]
        self.rows.free_now(row.index)

    # Completing pages

    def _complete_page(
        self, row: Row, page: int, tokens: Sequence[int], extras: Callable[[int], object] | None
    ) -> None:
        """Shares a page, or finds that it is shared, and its window likewise."""
        if page == len(row.path):
            self._publish(row, page, page_key(tokens, page * self._page_size, (page + 1) * self._page_size))
        node = row.path[page]
        row.num_completed = page + 1
        if extras is not None and node.extras is None and page * self._page_size >= row.whole_from:
            node.extras = extras(page)
        if page >= row.first_window:
            self._share_window(row, page, node)

    def _share_window(self, row: Row, page: int, node: PageNode) -> None:
        """A completed page's window becomes the trie's, unless the trie has one or the row's own is not exact."""
        own = int(self.tables.windows[row.index, page])
        if node.window:
            self.windows.free_later(own)
            self.tables.set_window(row.index, page, node.window)
            self.trie.lock_window(node)
        elif self._is_exact(row, page):
            self.trie.give_window(node, own)
            self._counts.num_donations += page * self._page_size < row.stored_len
        else:
            return
        row.shared_windows.add(page)

    def _publish(self, row: Row, page: int, key: bytes) -> None:
        """The page becomes the trie's, or the trie has it from another row and ours is free."""
        parent = row.path[-1] if row.path else row.root
        own = int(self.tables.pages[row.index, page])
        node = parent.children.get(key)
        if node is None:
            node = self.trie.publish(parent, key, own)
            self._counts.num_published += 1
        else:
            self.trie.lock_page(node)
            self.pages.free_later(own)
            self.tables.set_page(row.index, page, node.page)
            self._counts.num_duplicates += 1
        row.path.append(node)

    def _slide(self, row: Row, page: int) -> None:
        """No later token of the row reads this window."""
        own = int(self.tables.windows[row.index, page])
        self.tables.set_window(row.index, page, 0)
        row.first_window = page + 1
        if page not in row.shared_windows:
            self.windows.free_later(own)
            return
        node, is_checkpoint = row.path[page], self._is_checkpoint(row, page)
        row.shared_windows.remove(page)
        self.left_windows.append(node)
        self.fence.run_after(lambda: self._leave_window(node, is_checkpoint))

    def _leave_window(self, node: PageNode, is_checkpoint: bool) -> None:
        self.left_windows.remove(node)
        self._settle_window(node, is_checkpoint, is_kept=False)

    def _settle_window(self, node: PageNode, is_checkpoint: bool, *, is_kept: bool) -> None:
        """A row lets go of a shared window: it stays for later prompts, or goes with its last reader."""
        if is_checkpoint:
            self.trie.mark_checkpoint(node)
        self.trie.unlock_window(node)
        if not (is_kept or node.is_checkpoint or node.window_locks):
            self.windows.free_now(self.trie.take_window(node))

    def _is_checkpoint(self, row: Row, page: int) -> bool:
        """Whether retention wants a boundary whose window reaches into this page."""
        if row.is_private:
            return False
        ends = range(page + 1, page + 1 + self._window_pages)
        keeps = self._retention.is_checkpoint
        return any(keeps(end * self._page_size, row.prompt_len, row.branch_len) for end in ends)

    # Guards: each is one law, and has a test that fails without it.

    def _num_shareable(self, row: Row) -> int:
        """Full and committed pages."""
        return row.committed_len // self._page_size

    def _is_exact(self, row: Row, page: int) -> bool:
        """Whether every window row of this page is exact that the first boundary behind it, or a later one, reads."""
        end = (page + 1) * self._page_size
        return max(end - self._page_size, end - self.geometry.window) >= row.exact_len

    # Ids

    def _take_page(self) -> int:
        if not self.pages.num_free:
            page, window = self.trie.evict_page()
            self.pages.free_now(page)
            self._counts.num_evicted_pages += 1
            if window:
                self.windows.free_now(window)
                self._counts.num_evicted_windows += 1
        page = self.pages.take()
        self._queue.add_page(page)
        return page

    def _take_window(self) -> int:
        if not self.windows.num_free:
            self.windows.free_now(self.trie.evict_window())
            self._counts.num_evicted_windows += 1
        window = self.windows.take()
        self._queue.add_window(window)
        return window

    def _flush(self, root: PageNode) -> None:
        for page, window in self.trie.flush(root):
            self.pages.free_now(page)
            if window:
                self.windows.free_now(window)


def _pool_stats(pool: IdPool, cached: int, evictable: int) -> PoolStats:
    private = pool.count - pool.num_free - pool.num_fenced - cached
    return PoolStats(pool.count, pool.num_free, cached, private, pool.num_fenced, evictable)
