"""The page trie in small scenes: what matches, in which order it is given up, and what stays young."""

import pytest

from benthic.cache.trie import PageNode, PageTrie, page_key

PAGE = 4
NAMESPACE = ("weights", 0, "")


class Scene:
    """A trie of pages of 4 tokens, filled by hand."""

    def __init__(self, window_pages: int = 1) -> None:
        self.trie = PageTrie(PAGE, window_pages)
        self.next_id = 0

    def add(self, tokens: list[int], windows: str) -> list[PageNode]:
        """Publishes what is new of a prefix, and lets it go. `windows`: one letter a page, w or -; C a checkpoint."""
        trie, root, path = self.trie, self.trie.root(NAMESPACE), []
        trie.lock_path(root, [])
        for page, letter in enumerate(windows):
            parent = path[-1] if path else root
            key = page_key(tokens, page * PAGE, (page + 1) * PAGE)
            node = parent.children.get(key)
            if node is None:
                self.next_id += 1
                node = trie.publish(parent, key, self.next_id)
            else:
                trie.lock_page(node)
            path.append(node)
            if letter != "-" and not node.window:
                trie.give_window(node, 100 + node.page)
                if letter == "C":
                    trie.mark_checkpoint(node)
                trie.unlock_window(node)
        trie.unlock_path(root, path)
        return path

    def usable(self, tokens: list[int]) -> tuple[int, int]:
        path, _ = self.trie.walk(self.trie.root(NAMESPACE), tokens, len(tokens) // PAGE)
        return self.trie.usable_pages(path), len(path)


@pytest.mark.parametrize(
    ("window_pages", "windows", "usable"),
    [(1, "www", 3), (1, "ww-", 2), (1, "w--", 1), (1, "---", 0), (1, "--w", 3)]
    + [(2, "www", 3), (2, "w-w", 1), (2, "-ww", 3), (2, "-w-", 0), (2, "--w", 0), (2, "w--", 1), (3, "ww-", 2)],
)
def test_the_usable_boundary_is_the_deepest_with_windows_as_far_as_a_query_reads(
    window_pages: int, windows: str, usable: int
) -> None:
    scene = Scene(window_pages)
    scene.add(list(range(12)), windows)
    assert scene.usable(list(range(13))) == (usable, 3)


def test_the_leaf_that_was_let_go_first_is_evicted_first_and_parents_inherit_their_children_s_time() -> None:
    scene = Scene()
    old = scene.add([0] * 4 + [1] * 4 + [2] * 4, "www")
    other = scene.add([5] * 4, "w")
    scene.add([0] * 4 + [1] * 4, "ww")  # the inner page of the first is asked for again: its child is not
    order = [scene.trie.evict_page() for _ in range(4)]
    assert order == [(3, 103), (4, 104), (2, 102), (1, 101)]
    assert not any(node.page or node.window for node in old + other)
    assert scene.trie.roots == {} and scene.trie.num_windows == scene.trie.evictable_windows == 0


def test_windows_go_before_checkpoints_and_old_ones_before_young_ones() -> None:
    scene = Scene()
    nodes = scene.add(list(range(16)), "CwCw")
    scene.trie.touch(nodes[:1])
    scene.trie.touch(nodes[:2])
    assert [scene.trie.evict_window() for _ in range(4)] == [104, 102, 103, 101]
    assert scene.usable(list(range(17))) == (0, 4)


def test_asking_for_a_prefix_keeps_only_the_windows_young_from_which_one_goes_on() -> None:
    scene = Scene(window_pages=2)
    nodes = scene.add(list(range(16)), "wwww")
    before = [node.window_use for node in nodes]
    scene.trie.touch(nodes[:3])
    assert [node.window_use != age for node, age in zip(nodes, before, strict=True)] == [False, True, True, False]


def test_what_somebody_holds_is_passed_over() -> None:
    scene = Scene()
    held = scene.add([0] * 4, "w")
    scene.add([1] * 4, "w")
    scene.trie.lock_path(scene.trie.root(NAMESPACE), held)
    scene.trie.lock_window(held[0])
    assert scene.trie.evict_window() == 102
    assert scene.trie.evict_page() == (2, 0)
    assert scene.trie.evictable_pages == scene.trie.evictable_windows == 0
    assert held[0].page == 1 and held[0].window == 101


def test_pages_without_extras_end_a_match_that_needs_them() -> None:
    scene = Scene()
    nodes = scene.add(list(range(12)), "www")
    nodes[0].extras = nodes[2].extras = "routes"
    root = scene.trie.root(NAMESPACE)
    assert scene.trie.walk(root, list(range(13)), 3, need_extras=True) == (nodes[:1], True)
    assert scene.trie.walk(root, list(range(13)), 3) == (nodes, False)


def test_flushing_spares_what_is_held() -> None:
    scene = Scene()
    nodes = scene.add(list(range(12)), "www")
    root = scene.trie.root(NAMESPACE)
    scene.trie.lock_path(root, nodes[:1])
    assert sorted(scene.trie.flush(root)) == [(2, 102), (3, 103)]
    scene.trie.unlock_path(root, nodes[:1])
    assert scene.trie.flush(root) == [(1, 101)] and scene.trie.roots == {}


def test_the_order_of_eviction_takes_memory_by_pages_and_not_by_requests() -> None:
    scene = Scene()
    for _ in range(2000):
        scene.add([0] * 4 + [1] * 4, "ww")
        node = next(iter(scene.trie.nodes()))
        scene.trie.touch([node])
    leaves, windows = scene.trie.queued()
    assert len(scene.trie._leaves) < 100 and len(scene.trie._idle_windows) < 100
    assert {node.page for node in leaves} == {2} and {node.page for node in windows} == {1, 2}
