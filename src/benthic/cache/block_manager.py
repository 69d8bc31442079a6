"""Who holds which cache blocks. Pure bookkeeping: ids only, no tensors, no clock.

A sequence owns one table per block kind. Window tables grow with every token and are slid: blocks that no later token
can read go back and leave the null block in the table, so that a table is always indexed by absolute position. Entry
tables only grow. Laws: every block is free or in exactly one table; a table covers what its sequence was grown to.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from benthic.cache.blocks import NULL_BLOCK, BlockPool
from benthic.cache.layout import BLOCK_SIZE, WINDOW, CacheLayout, blocks_for


@dataclass(slots=True)
class BlockTable:
    """Blocks of one sequence: `blocks[ratio][i]` holds rows 64*i .. 64*i + 63 of that kind."""

    blocks: dict[int, list[int]]
    first_window_block: int = 0
    """Window blocks before this one are gone (null)."""
    grown_len: int = 0
    """Tokens that the tables have room for."""


@dataclass(slots=True)
class CacheManager:
    """Owns every block id of a cache.

    `fresh` collects the blocks handed out since `take_fresh`: they must be cleared before a pass reads them, so that
    nothing of an earlier owner, not even a NaN behind a mask, can reach the new one.
    """

    layout: CacheLayout
    pools: dict[int, BlockPool] = field(init=False)
    tables: dict[int, BlockTable] = field(init=False)
    fresh: dict[int, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forgets all owners, whatever state an interrupted step left; blocks are cleared when they are taken again."""
        self.tables = {}
        self.pools = {ratio: BlockPool(count) for ratio, count in self.layout.num_blocks.items()}
        self.fresh = {ratio: [] for ratio in self.pools}

    @property
    def num_used(self) -> int:
        """Blocks owned, over all kinds."""
        return sum(pool.num_blocks - pool.num_free for pool in self.pools.values())

    @property
    def num_blocks(self) -> int:
        """Blocks there are, over all kinds."""
        return sum(pool.num_blocks for pool in self.pools.values())

    def can_open(self, total_len: int, expected: Mapping[int, int]) -> bool:
        """Whether a new sequence of `total_len` tokens fits while the open ones grow to their `expected` lengths."""
        for ratio, pool in self.pools.items():
            if ratio != WINDOW:
                needs = (
                    max(0, blocks_for(length, ratio) - len(self.tables[sequence].blocks[ratio]))
                    for sequence, length in expected.items()
                )
                if pool.num_free < blocks_for(total_len, ratio) + sum(needs):
                    return False
        return True

    def open(self, sequence: int, total_len: int) -> BlockTable:
        """Gives a sequence its tables, with the entry blocks of all its known tokens: a prefill never runs short."""
        assert sequence not in self.tables, sequence
        table = BlockTable({ratio: [] for ratio in self.pools})
        self.tables[sequence] = table
        for ratio in self.pools:
            if ratio != WINDOW:
                self._extend(table, ratio, blocks_for(total_len, ratio))
        return table

    def can_grow(self, sequence: int, new_len: int) -> bool:
        """Whether the blocks for tokens up to `new_len` are there."""
        table = self.tables[sequence]
        return all(
            pool.num_free >= blocks_for(new_len, ratio) - len(table.blocks[ratio]) for ratio, pool in self.pools.items()
        )

    def grow(self, sequence: int, new_len: int) -> None:
        """Makes room for tokens up to `new_len`; `can_grow` was asked."""
        table = self.tables[sequence]
        assert new_len >= table.grown_len, (new_len, table.grown_len)
        for ratio in self.pools:
            self._extend(table, ratio, blocks_for(new_len, ratio))
        table.grown_len = new_len

    def slide(self, sequence: int, computed_len: int) -> None:
        """Frees window blocks that neither a window nor a compressor of the token `computed_len` or later reads."""
        table = self.tables[sequence]
        window = table.blocks[WINDOW]
        first_kept = max(0, computed_len - self.layout.kept_len + 1) // BLOCK_SIZE
        if first_kept <= table.first_window_block:
            return
        gone = window[table.first_window_block : first_kept]
        self.pools[WINDOW].give_back(gone)
        window[table.first_window_block : first_kept] = [NULL_BLOCK] * len(gone)
        table.first_window_block = first_kept

    def release(self, sequence: int) -> None:
        """Takes back everything that a sequence owns."""
        table = self.tables.pop(sequence)
        for ratio, blocks in table.blocks.items():
            self.pools[ratio].give_back([block for block in blocks if block != NULL_BLOCK])

    def take_fresh(self) -> dict[int, list[int]]:
        """Blocks handed out since the last call, by kind."""
        fresh, self.fresh = self.fresh, {ratio: [] for ratio in self.pools}
        return fresh

    def check(self) -> None:
        """Asserts the laws over all tables."""
        for ratio, pool in self.pools.items():
            pool.check([b for table in self.tables.values() for b in table.blocks[ratio] if b != NULL_BLOCK])
        for table in self.tables.values():
            gone, window = table.first_window_block, table.blocks[WINDOW]
            assert all(block == NULL_BLOCK for block in window[:gone]), "a slid block is still in the table"
            assert NULL_BLOCK not in window[gone:], "a hole in the window"
            for ratio, blocks in table.blocks.items():
                assert len(blocks) >= blocks_for(table.grown_len, ratio), "a table is shorter than its sequence"

    def _extend(self, table: BlockTable, ratio: int, count: int) -> None:
        missing = count - len(table.blocks[ratio])
        if missing > 0:
            taken = self.pools[ratio].take(missing)
            table.blocks[ratio] += taken
            self.fresh[ratio] += taken
