"""One request's place in the cache: what it shares, what it owns, how far it has come."""

from dataclasses import dataclass, field

from benthic.cache.trie import PageNode
from benthic.cache.work import Match


@dataclass(slots=True, eq=False)
class Row:
    """A request row. Everybody may read it; the manager alone writes.

    Laws: start_len <= committed_len; committed_len <= allocated_len after the first `grow`; pages of `path` are the
    trie's and locked, those from there up to allocated_len are the row's own.
    """

    index: int
    """Row of the tables and of the rings."""
    match: Match
    prompt_len: int
    start_len: int
    """First position to compute."""
    stored_len: int
    """Entries of blocks that end at or before this exist already: computing rows before it writes no entries."""
    committed_len: int
    """Positions before this are computed and their tokens are final; start_len at first."""
    allocated_len: int
    """Positions before this have pages and windows: a multiple of the page size."""
    path: list[PageNode] = field(default_factory=list)
    """The trie's pages that this row holds, from the first page on."""
    is_open: bool = True

    @property
    def replay_len(self) -> int:
        """Tokens that are computed although their entries exist, to rebuild windows and rings."""
        return self.stored_len - self.start_len
