"""One request's place in the cache: what it shares, what it owns, how far it has come."""

import sys
from dataclasses import dataclass, field, replace

from benthic.cache.trie import PageNode
from benthic.cache.work import Match

NO_WINDOW = sys.maxsize
"""The first page with a window, of rows of a model that has none."""


@dataclass(slots=True, eq=False)
class Row:
    """A request row. Everybody may read it; the manager alone writes.

    Laws: start_len <= committed_len; committed_len <= allocated_len after the first `grow`; the pages of `path` are the
    trie's and locked by this row, those from there up to allocated_len are the row's own; a window is the trie's where
    its page is in `shared_windows`, and the row's own elsewhere.
    """

    index: int
    """Row of the tables and of the rings."""
    match: Match
    prompt_len: int
    start_len: int
    """First position to compute."""
    stored_len: int
    """Entries of blocks that end at or before this exist already: computing rows before it writes no entries."""
    exact_len: int
    """Windows of positions from here on are exact: a replay begins without a window, and its first rows lack keys."""
    committed_len: int
    """Positions before this are computed and their tokens are final; start_len at first."""
    allocated_len: int
    """Positions before this have pages, and windows where there are any: a multiple of the page size."""
    next_page_end: int
    """The next page completes here: until then a commit changes nothing else."""
    num_completed: int
    """Pages before this one are full and committed."""
    first_window: int
    """Windows before this page are gone, or never were; NO_WINDOW where no page has one."""
    root: PageNode
    path: list[PageNode] = field(default_factory=list)
    """The trie's pages that this row holds, from the first page on."""
    shared_windows: set[int] = field(default_factory=set)
    """Pages whose window is the trie's and locked by this row."""
    branch_len: int = 0
    """Another sequence had the same tokens up to here and left no window: 0 if there was none."""
    is_private: bool = False
    """Shares with its forks only."""
    is_open: bool = True

    @property
    def replay_len(self) -> int:
        """Tokens that are computed although their entries exist, to rebuild windows and rings."""
        return max(0, self.stored_len - self.start_len)

    @property
    def whole_from(self) -> int:
        """From here on all that a row computes is exact, in the last layer too; a replay's own rows are not."""
        return self.stored_len if self.exact_len else 0

    def copy(self, allocated_len: int) -> "Row":
        """The committed part of this row, without an index: it begins to compute where this one has come to."""
        return replace(
            self,
            index=-1,
            start_len=self.committed_len,
            allocated_len=allocated_len,
            path=self.path.copy(),
            shared_windows=self.shared_windows.copy(),
        )
