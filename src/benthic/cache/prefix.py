"""How much of a prompt is cached, and where its row begins to compute."""

from collections.abc import Sequence

from benthic.cache.geometry import CacheGeometry
from benthic.cache.row import NO_WINDOW, Row
from benthic.cache.trie import Namespace, PageNode, PageTrie
from benthic.cache.work import Cut, Match


def match_prefix(
    trie: PageTrie, tokens: Sequence[int], namespace: Namespace, *, need_extras: bool
) -> tuple[Match, list[PageNode]]:
    """The match of a prompt and the pages of its compressed boundary. The prompt's last token is never part of it."""
    size = trie.page_size
    limit, root = (len(tokens) - 1) // size, trie.roots.get(namespace)
    if limit <= 0:
        return Match(0, 0, "shorter than a page"), []
    if root is None:
        return Match(0, 0, "namespace empty"), []
    path, lacks_extras = trie.walk(root, tokens, limit, need_extras=need_extras)
    usable = trie.usable_pages(path)
    cut: Cut
    if usable == limit:
        cut = "whole prompt"
    elif usable < len(path):
        cut = "no window"
    else:
        cut = "no extras" if lacks_extras else "no such prefix"
    return Match(usable * size, len(path) * size, cut), path


def begin_row(
    geometry: CacheGeometry, match: Match, path: list[PageNode], root: PageNode, *, prompt_len: int, is_private: bool
) -> Row:
    """A row before it has an index: it goes on from the usable boundary, or replays up to the compressed one.

    Both are exact; what takes fewer tokens is chosen. A replay begins without a window, so only its last W window
    rows before the compressed boundary are exact. Without windows both boundaries are one.
    """
    usable, compressed = match.usable_len, match.compressed_len
    is_replay = compressed - usable > geometry.replay_len
    start = compressed - geometry.replay_len if is_replay else usable
    begun = start // geometry.page_size
    first_window = begun if is_replay else max(0, begun - geometry.window_pages)
    if not geometry.window_pages:
        first_window = NO_WINDOW
    return Row(
        index=-1,
        match=match,
        prompt_len=prompt_len,
        start_len=start,
        stored_len=compressed,
        exact_len=compressed - geometry.window if is_replay else 0,
        committed_len=start,
        allocated_len=begun * geometry.page_size,
        next_page_end=(begun + 1) * geometry.page_size,
        num_completed=begun,
        first_window=first_window,
        root=root,
        path=path,
        shared_windows=set(range(first_window, begun)),
        branch_len=compressed if compressed > usable else 0,
        is_private=is_private,
    )
