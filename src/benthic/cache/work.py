"""Records that pass between the cache's bookkeeping, the scheduler, and the pools on the device. No behaviour."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Cut = Literal[
    "whole prompt",  # everything that may be reused is: only the prompt's last tokens are left
    "no such prefix",  # the next page is not cached
    "no window",  # entries reach further than the last boundary that has a window
    "no extras",  # the next page is cached without what the request wants returned
    "namespace empty",  # nothing is cached for these weights and this salt
    "shorter than a page",
    "not asked",
    "fork",  # the prompt was taken over from a sibling that had computed it
    "not admitted",  # the request ended before it had a row
]
"""Why reuse ends where it does."""


class Match(NamedTuple):
    """How much of a prompt the cache knows. Lengths are multiples of the page size and leave a token to compute."""

    usable_len: int
    """The deepest boundary that has a window: computing may go on from here at once."""
    compressed_len: int
    """The deepest boundary whose compressed entries exist; >= usable_len."""
    cut: Cut


class Restore(NamedTuple):
    """The ring of `row` gets the boundary snapshot of window page `window`: raw rows position-4 .. position-1."""

    row: int
    window: int
    position: int


class Copy(NamedTuple):
    """Everything under id `source` is copied to id `target` (of the same pool)."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class CacheWork:
    """What the device does before the next pass, in this order: clear, restore, copy.

    An id that was handed out since the last `take_work` is in its `fresh_*` list exactly once, also where a copy
    then fills it. No id is the target of one copy and the source of another.
    """

    fresh_pages: tuple[int, ...]
    """Entries and indexer keys of these pages become zeros."""
    fresh_windows: tuple[int, ...]
    """Kv rows and snapshots of these windows become zeros."""
    fresh_rows: tuple[int, ...]
    """Rings of these rows become zeros."""
    restores: tuple[Restore, ...]
    page_copies: tuple[Copy, ...]
    window_copies: tuple[Copy, ...]
    """Kv rows and snapshots."""
    row_copies: tuple[Copy, ...]
    """Rings."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do. A copy's or restore's target row is fresh, so these three decide."""
        return not (self.fresh_pages or self.fresh_windows or self.fresh_rows)


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Where the ids of a pool are: the four counts add up to `capacity`."""

    capacity: int
    free: int
    cached: int
    """In the trie, locked or not."""
    private: int
    """Held by one row."""
    fenced: int
    """Freed, but a pass in flight or a queued copy may still read them."""
    evictable: int
    """The cached ones that nobody holds."""


@dataclass(slots=True)
class CacheCounts:
    """What has happened since the cache was made."""

    num_opens: int = 0
    num_replays: int = 0
    asked_len: int = 0
    """Tokens of all opened sequences."""
    compressed_len: int = 0
    """Of these, how many had compressed entries in the cache."""
    usable_len: int = 0
    """Of these, how many had a window at their end."""
    num_published: int = 0
    """Pages that became shared."""
    num_duplicates: int = 0
    """Pages that were shared already when a row completed them."""
    num_donations: int = 0
    """Windows given to pages that had lost theirs."""
    num_evicted_pages: int = 0
    num_evicted_windows: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """State of the cache now, and what has happened since it was made."""

    pages: PoolStats
    windows: PoolStats
    num_rows: int
    """Open rows."""
    num_namespaces: int
    num_checkpoints: int
    """Cached windows that retention wants kept longest."""
    counts: CacheCounts
