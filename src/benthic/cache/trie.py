"""The page trie: one node is one page of tokens whose entries are cached. Namespaces are separate roots.

What it shares never changes: a node's tokens, page and extras are set once. Only its window comes and goes; a node
without one is a tombstone: its entries still match, but nobody can go on from there.

Laws: `locks` counts the rows whose path holds the node, so a parent has at least its children's; `window_locks` counts
those that still read its window; a locked page is not evicted, a locked window not taken away; counters are exact.
"""

import heapq
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count

Namespace = tuple[Hashable, ...]


class PageNode:
    """One cached page, or a root: a root has no parent and page 0."""

    __slots__ = (
        "children",
        "extras",
        "is_checkpoint",
        "key",
        "last_use",
        "locks",
        "namespace",
        "page",
        "parent",
        "window",
        "window_locks",
        "window_use",
    )

    def __init__(self, parent: "PageNode | None", key: bytes, page: int, namespace: Namespace) -> None:
        self.parent = parent
        self.key = key
        self.page = page
        self.namespace = namespace
        self.children: dict[bytes, PageNode] = {}
        self.window = 0
        self.locks = 0
        self.window_locks = 0
        self.last_use = 0
        self.window_use = 0
        self.is_checkpoint = False
        self.extras: object = None


def page_key(tokens: Sequence[int], start: int, stop: int) -> bytes:
    """The key of the page tokens[start:stop]: the tokens themselves as int32."""
    return array("i", tokens[start:stop]).tobytes()


class PageTrie:
    """Cached pages of all namespaces, and the order in which they are given up.

    Args:
        page_size: tokens a page.
        window_pages: pages before a boundary that must have windows for a sequence to go on from it; 0: it can
            always.
    """

    def __init__(self, page_size: int, window_pages: int) -> None:
        self.roots: dict[Namespace, PageNode] = {}
        self.num_pages = 0
        self.num_windows = 0
        self.num_checkpoints = 0
        self.evictable_pages = 0
        self.evictable_windows = 0
        self.page_size = page_size
        self._window_pages = window_pages
        self._clock = count(1)
        # Lazily cleaned: an entry counts only while it describes its node as it is. Serial numbers break ties.
        self._serials = count()
        self._leaves: list[tuple[int, int, PageNode]] = []
        self._idle_windows: list[tuple[bool, int, int, PageNode]] = []

    # Reading

    def walk(
        self, root: PageNode, tokens: Sequence[int], num_pages: int, *, need_extras: bool = False
    ) -> tuple[list[PageNode], bool]:
        """The nodes of the longest cached prefix, at most `num_pages`; and whether missing extras ended it."""
        size, node = self.page_size, root
        path: list[PageNode] = []
        for page in range(num_pages):
            child = node.children.get(page_key(tokens, page * size, (page + 1) * size))
            if child is None:
                break
            if need_extras and child.extras is None:
                return path, True
            path.append(child)
            node = child
        return path, False

    def usable_pages(self, path: Sequence[PageNode]) -> int:
        """The deepest boundary of a path, in pages, before which every page that a window reaches into has one."""
        for boundary in range(len(path), 0, -1):
            if all(map(self._has_window, path[max(0, boundary - self._window_pages) : boundary])):
                return boundary
        return 0

    def nodes(self) -> Iterator[PageNode]:
        """All pages, parents first."""
        for root in self.roots.values():
            yield from subtree(root)

    # Sharing

    def root(self, namespace: Namespace) -> PageNode:
        """The root of a namespace, made where there is none. It stays as long as it has pages or locks."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = PageNode(None, b"", 0, namespace)
        return root

    def publish(self, parent: PageNode, key: bytes, page: int) -> PageNode:
        """Shares a page, locked by who brings it: afterwards it is the trie's, and nobody writes it."""
        assert len(key) == 4 * self.page_size, "only full pages are shared"
        assert key not in parent.children and page, "the page is shared already"
        assert parent.locks, "the publisher holds the pages before"
        node = parent.children[key] = PageNode(parent, key, page, parent.namespace)
        node.locks = 1
        node.last_use = next(self._clock)
        self.num_pages += 1
        return node

    def give_window(self, node: PageNode, window: int) -> None:
        """A tombstone gets a window, locked by who brings it: afterwards it is the trie's."""
        assert window and not node.window and node.page, "only a tombstone can be given a window"
        node.window = window
        node.window_locks = 1
        node.window_use = next(self._clock)
        self.num_windows += 1

    def take_window(self, node: PageNode) -> int:
        """Makes a tombstone of a node; returns the window, which is the caller's."""
        assert not node.window_locks, "a window that somebody reads is taken away"
        window, node.window = node.window, 0
        self.num_windows -= 1
        self.evictable_windows -= 1
        self.num_checkpoints -= node.is_checkpoint
        node.is_checkpoint = False
        return window

    def mark_checkpoint(self, node: PageNode) -> None:
        """Of a node that has a window: it is given up after all that are no checkpoints."""
        assert node.window, "a tombstone is no checkpoint"
        if not node.is_checkpoint:
            node.is_checkpoint = True
            self.num_checkpoints += 1
            if not node.window_locks:
                self._push_window(node)

    def touch(self, path: Sequence[PageNode]) -> None:
        """Somebody goes on from the end of this path: the windows that it reads there are kept longer.

        Windows further up stay as old as they are: nobody goes on from them, and young ones would push out those that
        matter. Pages are as young as their last unlocking.
        """
        now = next(self._clock)
        for node in path[max(0, len(path) - self._window_pages) :]:
            node.window_use = now
            if not node.window_locks:
                self._push_window(node)

    # Locks

    def lock_path(self, root: PageNode, path: Iterable[PageNode]) -> None:
        """A row holds these pages, from the root on."""
        root.locks += 1
        for node in path:
            self.lock_page(node)

    def lock_page(self, node: PageNode) -> None:
        """A row that holds the parent holds this page as well."""
        assert node.page, "an evicted page is locked"
        self.evictable_pages -= not node.locks
        node.locks += 1

    def unlock_path(self, root: PageNode, path: Sequence[PageNode]) -> None:
        """Undoes `lock_path` and the `lock_page` of each page since. They were in use until now.

        The last page stands for its parents: they inherit its time when it is evicted.
        """
        for node in path:
            node.locks -= 1
            assert node.locks >= 0, "a page is unlocked more often than locked"
            self.evictable_pages += not node.locks
        root.locks -= 1
        if path:
            path[-1].last_use = next(self._clock)
            self._push_leaf(path[-1])
        self._forget_if_empty(root)

    def lock_window(self, node: PageNode) -> None:
        """A row reads this node's window."""
        assert node.window, "the window of a tombstone is locked"
        self.evictable_windows -= not node.window_locks
        node.window_locks += 1

    def unlock_window(self, node: PageNode) -> None:
        """Undoes one `lock_window`."""
        node.window_locks -= 1
        assert node.window_locks >= 0, "a window is unlocked more often than locked"
        if not node.window_locks:
            self.evictable_windows += 1
            self._push_window(node)

    # Giving up

    def evict_page(self) -> tuple[int, int]:
        """Gives up the least recently used page that nobody holds: its id and its window's (0 for a tombstone).

        There must be one.
        """
        while True:
            last_use, _, node = heapq.heappop(self._leaves)
            if last_use == node.last_use and self._may_evict_page(node):
                break
        ids = self._remove(node)
        parent = node.parent
        assert parent is not None
        if parent.parent is None:
            self._forget_if_empty(parent)
        else:
            parent.last_use = max(parent.last_use, node.last_use)
            self._push_leaf(parent)
        return ids

    def evict_window(self) -> int:
        """Gives up a window that nobody reads: those that are no checkpoints first, then the longest unused.

        There must be one.
        """
        while True:
            is_checkpoint, last_use, _, node = heapq.heappop(self._idle_windows)
            if (is_checkpoint, last_use) == (node.is_checkpoint, node.window_use) and self._may_evict_window(node):
                return self.take_window(node)

    def flush(self, root: PageNode) -> list[tuple[int, int]]:
        """Gives up all pages of a namespace that nobody holds: their ids and their windows'."""
        nodes = [node for node in subtree(root) if not node.locks]
        ids = [self._remove(node) for node in reversed(nodes)]
        self._forget_if_empty(root)
        return ids

    def _remove(self, node: PageNode) -> tuple[int, int]:
        assert node.parent is not None and not node.children, "only leaves are evicted"
        assert not node.locks, "a page that somebody holds is evicted"
        window = self.take_window(node) if node.window else 0
        page, node.page, node.extras = node.page, 0, None
        del node.parent.children[node.key]
        self.num_pages -= 1
        self.evictable_pages -= 1
        return page, window

    def _forget_if_empty(self, root: PageNode) -> None:
        if not root.children and not root.locks:
            self.roots.pop(root.namespace, None)

    # Guards: each is one law, and has a test that fails without it.

    @staticmethod
    def _has_window(node: PageNode) -> bool:
        return node.window != 0

    @staticmethod
    def _may_evict_page(node: PageNode) -> bool:
        return not node.locks and not node.children and node.page != 0

    @staticmethod
    def _may_evict_window(node: PageNode) -> bool:
        return not node.window_locks and node.window != 0

    # Order of eviction

    def queued(self) -> tuple[set[PageNode], set[PageNode]]:
        """The nodes that `evict_page` and those that `evict_window` could find now, for checks."""
        leaves = {node for use, _, node in self._leaves if use == node.last_use}
        windows = {e[3] for e in self._idle_windows if e[:2] == (e[3].is_checkpoint, e[3].window_use)}
        return leaves, windows

    def _push_leaf(self, node: PageNode) -> None:
        if not node.locks and not node.children:
            heapq.heappush(self._leaves, (node.last_use, next(self._serials), node))
            if len(self._leaves) > 2 * self.num_pages + 64:
                self._rebuild_leaves()

    def _push_window(self, node: PageNode) -> None:
        entry = (node.is_checkpoint, node.window_use, next(self._serials), node)
        heapq.heappush(self._idle_windows, entry)
        if len(self._idle_windows) > 2 * self.num_windows + 64:
            self._rebuild_windows()

    def _rebuild_leaves(self) -> None:
        nodes = {e[2]: e for e in self._leaves if e[0] == e[2].last_use and self._may_evict_page(e[2])}
        self._leaves = list(nodes.values())
        heapq.heapify(self._leaves)

    def _rebuild_windows(self) -> None:
        nodes = {
            e[3]: e
            for e in self._idle_windows
            if e[:2] == (e[3].is_checkpoint, e[3].window_use) and self._may_evict_window(e[3])
        }
        self._idle_windows = list(nodes.values())
        heapq.heapify(self._idle_windows)


def subtree(root: PageNode) -> Iterator[PageNode]:
    """All pages under a node, parents before their children; the node itself is left out."""
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node.children.values())
