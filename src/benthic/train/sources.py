"""Where training batches come from, so that a run can stop and continue at the same token.

A source is a pure function from a block number to the batches of that block. The cursor of a run is therefore one
integer, the number of batches taken, and the number of worker processes cannot change what is trained on.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from benthic.errors import DataError
from benthic.train.item import Item
from benthic.train.packing import Layout, Packer, TrainBatch, pack_all

_MOST_MISFITS = 100
_ROWS_PER_BLOCK = 1 << 18

Generate = Callable[[int], Iterator[Item]]


class Source(Protocol):
    """Batches in numbered blocks. `block` is a pure function; it may run in another process, so sources pickle."""

    @property
    def batches_per_block(self) -> int:
        """Batches in every block."""

    def block(self, index: int) -> Sequence[TrainBatch]:
        """The batches of block `index` >= 0."""


class GeneratedSource:
    """Documents made on the fly, without end: `generate(seed)` yields documents drawn with that seed.

    The batches of a block are filled together, best fit, until a document finds no place; that one is dropped. While
    more than `slack` of the rows are free, drawing goes on, for as many as 100 documents in vain.
    """

    def __init__(
        self,
        generate: Generate,
        layout: Layout,
        *,
        seed: int,
        batches_per_block: int | None = None,
        slack: float = 0.03,
    ) -> None:
        self._generate = generate
        self._layout = layout
        self._seed = seed
        # The more batches are filled together, the fewer long documents find no place.
        self._batches_per_block = batches_per_block or min(16, max(4, _ROWS_PER_BLOCK // layout.budget))
        self._slack = slack

    @property
    def batches_per_block(self) -> int:
        return self._batches_per_block

    def block(self, index: int) -> list[TrainBatch]:
        packer = Packer(self._layout, self._batches_per_block)
        may_be_free = self._slack * self._layout.budget * self._batches_per_block
        misfits = 0
        for item in self._generate(block_seed(self._seed, index)):
            for piece in packer.pieces(item):
                if packer.fits(piece):
                    packer.put(piece)
                    continue
                misfits += 1
                if packer.free_rows <= may_be_free or misfits == _MOST_MISFITS:
                    return packer.flush()
        raise DataError(f"the generator ended inside block {index}; it must yield documents without end")


class ListSource:
    """A finite list of documents. A block is one pass over all of them; the order of its batches is shuffled anew."""

    def __init__(self, items: Sequence[Item], layout: Layout, *, seed: int) -> None:
        if not items:
            raise DataError("no documents to train on; at least one is needed")
        self._seed = seed
        order = np.random.default_rng(seed).permutation(len(items))
        self._batches = pack_all((items[i] for i in order), layout)

    @property
    def batches_per_block(self) -> int:
        return len(self._batches)

    def block(self, index: int) -> list[TrainBatch]:
        order = np.random.default_rng([self._seed, index]).permutation(len(self._batches))
        return [self._batches[i] for i in order]


def block_seed(seed: int, index: int) -> int:
    """A seed of 63 bits for one block, unrelated to those of neighbouring blocks and seeds."""
    return int(np.random.SeedSequence([seed, index]).generate_state(1, np.uint64)[0]) >> 1
