"""Which keys each row may read, as tiles of rows that share their key blocks.

Keys lie in pages of a buffer [num_slots, d] and are found by page tables; they are scored and folded in blocks of 64
keys at absolute positions, whatever the page size. A tile is one row, or up to 64 rows of one sequence whose
positions share an aligned block of 64; it reads three window blocks (none where there is no window) and then the
blocks of entries, in order. The grouping therefore depends on positions alone, and a row folds the same partial sums
whatever else is in the pass and wherever its keys lie.
"""

from dataclasses import dataclass, replace

from torch import Tensor

BLOCK = 64
"""Keys in a block: the unit in which scores are grouped and partial sums are folded."""

WINDOW_BLOCKS = 3
"""Aligned blocks that a tile of 64 rows needs to see a window of 128 tokens."""


@dataclass(frozen=True, slots=True)
class KeyTiles:
    """One group of n tiles with Q query rows each.

    Key p of sequence s lies in slot `window_table[s, p // window_page] * window_page + p % window_page` of the kv
    buffer, entry w in slot `entry_base + entry_table[s, w // entry_page] * entry_page + w % entry_page`, and its
    indexer key in the same slot of their own buffer, without `entry_base`. Pages that no row can see may be any.

    Query t sees window key j iff t - window < j <= t, and entry w iff w < (t + 1) // ratio (model.md 2.4, 2.5). Latent
    attention is the case of window 0 and ratio 1: one entry a token, seen from that token on (family.md 3).
    """

    queries: Tensor
    """int64 [n*Q]: the row of each query; unused places repeat the tile's first row."""
    rows_per_tile: int
    positions: Tensor
    """int64 [n, Q]: position t of each query."""
    used: Tensor
    """int64 [n]: places of a tile that hold a row of their own."""
    sequence: Tensor
    """int64 [n]: row of the tables."""
    window_table: Tensor
    """int64 [S, pages], contiguous; read in place, but not where the window is 0."""
    window_page: int
    window: int
    entry_table: Tensor | None
    """int64 [S, pages], contiguous; None in layers of ratio 0."""
    entry_page: int
    entry_base: int
    ratio: int
    last_position: int
    """Upper bound of the positions, known to the host."""
    bias: Tensor | None = None
    """float32 [n, Q, B*64], 0 where a key is visible and -inf elsewhere, if it was made beforehand."""
    num_runs: int = 0
    """Upper bound of the runs of neighbouring tiles of one sequence, known to the host; 0 if it is not."""

    @property
    def num_tiles(self) -> int:
        """n."""
        return self.positions.shape[0]

    @property
    def num_blocks(self) -> int:
        """B: key blocks of a tile, those of the window and then those of entries; a multiple of 4."""
        return self.window_blocks + self.num_entry_blocks

    @property
    def window_blocks(self) -> int:
        """Blocks before the first one of entries: 3, or 0 without a window."""
        return window_blocks(self.window)

    @property
    def num_entry_blocks(self) -> int:
        """B - window_blocks: blocks of entries up to what the last position sees."""
        return num_entry_blocks(self.last_position, self.ratio, self.window)

    @property
    def max_visible(self) -> int:
        """Upper bound of the entries that a row of this group sees."""
        return (self.last_position + 1) // self.ratio if self.ratio else 0

    def part(self, first: int, end: int) -> "KeyTiles":
        """Tiles first .. end - 1."""
        if first == 0 and end >= self.num_tiles:
            return self
        return replace(
            self,
            queries=self.queries[first * self.rows_per_tile : end * self.rows_per_tile],
            positions=self.positions[first:end],
            used=self.used[first:end],
            sequence=self.sequence[first:end],
            bias=None if self.bias is None else self.bias[first:end],
        )

    def places(self, first: int, end: int) -> "KeyTiles":
        """The only tile, with its queries first .. end - 1."""
        assert self.num_tiles == 1, f"queries of {self.num_tiles} tiles do not lie side by side"
        if first == 0 and end >= self.rows_per_tile:
            return self
        end = min(end, self.rows_per_tile)
        return replace(
            self,
            queries=self.queries[first:end],
            rows_per_tile=end - first,
            positions=self.positions[:, first:end],
            used=(self.used - first).clamp(0, end - first),
            bias=None if self.bias is None else self.bias[:, first:end],
        )


@dataclass(frozen=True, slots=True)
class TilePlan:
    """All groups of a pass for one compression ratio.

    `order` int64 [R]: place of each row among the groups' query places, laid end to end. Dummy rows point at place 0.
    `is_in_order`: row i is at place i, and there are no other places.
    """

    groups: tuple[KeyTiles, ...]
    order: Tensor
    is_in_order: bool = False


def window_blocks(window: int) -> int:
    """Blocks of a tile that hold its window of so many tokens."""
    return WINDOW_BLOCKS if window else 0


def num_entry_blocks(last_position: int, ratio: int, window: int) -> int:
    """Blocks of entries that a group lists: what its last row sees, rounded up to whole fours with the window's."""
    visible = (last_position + 1) // ratio if ratio else 0
    before = window_blocks(window)
    return -(-(before + -(-visible // BLOCK)) // 4) * 4 - before
