"""The cache's laws, recomputed from scratch: structure, locks, counters, and what each row must have."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from benthic.cache.geometry import CacheGeometry
from benthic.cache.row import NO_WINDOW, Row
from benthic.cache.tables import PageTables
from benthic.cache.trie import PageNode, PageTrie


def check_trie(trie: PageTrie, rows: Sequence[Row], left_windows: Iterable[PageNode], page_size: int) -> None:
    """Asserts that nodes form a tree of full pages, and that locks and counters are what the rows make them.

    Args:
        left_windows: nodes whose window is locked although its row has moved on, one entry a lock.
    """
    nodes = list(trie.nodes())
    locks = Counter(node for row in rows for node in row.path)
    window_locks = Counter(row.path[page] for row in rows for page in row.shared_windows)
    window_locks.update(left_windows)
    roots = Counter(row.root for row in rows)
    assert locks.keys() | window_locks.keys() <= set(nodes), "an evicted page is held"
    for namespace, root in trie.roots.items():
        assert root.namespace == namespace and root.parent is None and not root.page
        assert root.locks == roots[root], "a root's locks are not its rows"
        assert root.locks or root.children, "an empty namespace stays"
    for node in nodes:
        _check_node(node, page_size)
        assert node.locks == locks[node], "a page's locks are not the rows that hold it"
        assert node.window_locks == window_locks[node], "a window's locks are not the rows that read it"
    idle_windows = {node for node in nodes if node.window and not node.window_locks}
    assert trie.num_pages == len(nodes)
    assert trie.num_windows == sum(node.window != 0 for node in nodes)
    assert trie.num_checkpoints == sum(node.is_checkpoint for node in nodes)
    assert trie.evictable_pages == sum(not node.locks for node in nodes)
    assert trie.evictable_windows == len(idle_windows)
    leaves, windows = trie.queued()
    assert {node for node in nodes if not node.locks and not node.children} <= leaves, "a page is never evicted"
    assert idle_windows <= windows, "a window is never evicted"


def _check_node(node: PageNode, page_size: int) -> None:
    parent = node.parent
    assert parent is not None and parent.children.get(node.key) is node
    assert node.page and node.namespace == parent.namespace
    assert len(node.key) == 4 * page_size, "a page is not full"
    assert node.locks >= node.window_locks >= 0
    assert node.locks >= sum(child.locks for child in node.children.values())
    assert node.window or not (node.is_checkpoint or node.window_locks), "a tombstone is locked or kept"


def check_rows(rows: Sequence[Row], tables: PageTables, geometry: CacheGeometry) -> None:
    """Asserts that each row's tables name exactly what it holds, and that its windows cover what it reads and no more.

    Tables of rows that are not in use hold zeros.
    """
    unused = np.ones(len(tables.pages), dtype=bool)
    for row in rows:
        unused[row.index] = False
        _check_lengths(row, geometry)
        _check_tables(row, tables, geometry)
    assert not tables.pages[unused].any() and not tables.windows[unused].any(), "an unused row has pages"


def _check_lengths(row: Row, geometry: CacheGeometry) -> None:
    size, reach = geometry.page_size, geometry.window_pages
    assert row.start_len <= row.committed_len
    assert row.committed_len <= row.allocated_len or row.committed_len == row.start_len
    assert row.num_completed == row.committed_len // size and row.next_page_end == (row.num_completed + 1) * size
    if not geometry.window_pages:
        assert row.first_window == NO_WINDOW and not row.shared_windows and not row.replay_len, "a row has windows"
        return
    begin = row.start_len if row.exact_len else 0
    assert row.first_window * size <= max(begin, row.committed_len - geometry.window), "a window is missing"
    assert row.first_window >= row.num_completed - reach, "a window is kept that nobody reads"
    completed = range(row.first_window, row.num_completed)
    assert row.shared_windows <= set(completed)
    for page in completed:
        assert page in row.shared_windows or page * size < row.exact_len, "a completed window is not shared"


def _check_tables(row: Row, tables: PageTables, geometry: CacheGeometry) -> None:
    path, last = row.path, row.allocated_len // geometry.page_size
    pages, windows = tables.pages[row.index], tables.windows[row.index]
    assert len(path) >= row.num_completed
    assert all(node.parent is parent for node, parent in zip(path, [row.root, *path], strict=False))
    assert pages[: len(path)].tolist() == [node.page for node in path], "the table names another page"
    assert pages[len(path) : last].all() and not pages[max(last, len(path)) :].any()
    assert not windows[: row.first_window].any(), "a window is named that the row has left"
    assert windows[row.first_window : last].all() and not windows[max(last, row.first_window) :].any()
    assert all(windows[page] == path[page].window for page in row.shared_windows), "the table names another window"
