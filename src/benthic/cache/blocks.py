"""Ids of cache blocks: who owns which, and that none is lost or owned twice.

Block 0 of every kind is the null block: nobody owns it, it holds zeros, and tables name it where nothing is kept.
"""

from benthic.errors import CapacityError

NULL_BLOCK = 0


class BlockPool:
    """Hands out block ids 1 .. num_blocks. Law: every id is either free or owned, never both, never twice.

    Freed ids are handed out again first, so that a small load touches little memory.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1, num_blocks
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks, 0, -1))
        self._owned: set[int] = set()

    @property
    def num_free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Takes `count` blocks.

        Raises:
            CapacityError: fewer are free; none is taken.
        """
        if count > len(self._free):
            raise CapacityError(f"{count} cache blocks are needed and {len(self._free)} are free; ask for less")
        taken = [self._free.pop() for _ in range(count)]
        self._owned.update(taken)
        return taken

    def give_back(self, blocks: list[int]) -> None:
        """Frees blocks that were taken."""
        for block in blocks:
            assert block in self._owned, f"block {block} is freed but not owned"
            self._owned.remove(block)
            self._free.append(block)

    def check(self, owned: list[int]) -> None:
        """Asserts conservation, given every id that the owners believe to own."""
        assert len(owned) == len(set(owned)), "a block is owned twice"
        assert set(owned) == self._owned, "owners and pool disagree"
        assert self._owned.isdisjoint(self._free), "a block is both free and owned"
        assert len(self._free) + len(self._owned) == self.num_blocks, "a block is lost"
