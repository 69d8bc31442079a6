"""Which keys each row may read, as tiles of rows that share their key blocks.

Keys live in a buffer [num_slots, d] that is read in aligned blocks of 64 slots. A tile is one row, or up to 64 rows
of one sequence whose positions share an aligned block of 64; it reads three window blocks and then the blocks of
compressed entries, in the order of their absolute positions. The grouping therefore depends on positions alone, and a
row folds the same partial sums whatever else is in the pass.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class KeyTiles:
    """One group of n tiles with Q query rows and B key blocks each.

    `queries` int64 [n*Q]: the row of each query (unused places repeat the tile's first row).
    `blocks` int64 [n, B]: key blocks of the kv buffer, three of the window and then the entries; B is a multiple of 4.
    `bias` float32 [n, Q, 1, B*64]: 0 where the key is visible, -inf elsewhere.
    `entry_blocks` int64 [n, B-3]: the same entries in the indexer's key buffer, or None in window-only layers.
    `max_visible`: the largest number of visible entries of a row in this group.
    """

    queries: Tensor
    rows_per_tile: int
    blocks: Tensor
    bias: Tensor
    entry_blocks: Tensor | None
    max_visible: int


@dataclass(frozen=True, slots=True)
class TilePlan:
    """All groups of a pass for one compression ratio.

    `order` int64 [R]: place of each row among the groups' query places, laid end to end. Dummy rows point at place 0.
    """

    groups: tuple[KeyTiles, ...]
    order: Tensor
