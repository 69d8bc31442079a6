"""What one pass does to the compressor rings: host arithmetic, of the size of the pass.

A compressor keeps its last raw rows in a ring that belongs to the request row: position p lies at p % R. A pass that
completes a block gathers the block's earlier rows from the ring, lays them in front of its own raw rows, and only then
writes its own last rows into the ring. A rejected draft therefore harms nothing: what it wrote is written again before
it is read, and the ring is long enough that it reached no row still needed (`CacheGeometry.min_ring_len`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benthic.cache.layout import SNAPSHOT_ROWS
from benthic.models.context import Chunk

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ChunkArrays:
    """The chunks of a pass by column, int64 [C] each (see `models.context.Chunk`)."""

    sequence: Ints
    start_row: Ints
    start: Ints
    length: Ints
    stored_len: Ints

    @classmethod
    def of(cls, chunks: Sequence[Chunk]) -> "ChunkArrays":
        """The same chunks, turned."""
        rows = [(c.sequence, c.start_row, c.start, c.length, c.stored_len) for c in chunks]
        return cls(*np.array(rows, dtype=np.int64).reshape(-1, 5).T)

    def positions(self) -> tuple[Ints, Ints]:
        """Sequence and position of every row, int64 [rows] each."""
        return np.repeat(self.sequence, self.length), spans(self.start, self.length)


@dataclass(frozen=True, slots=True)
class CompletedEntries:
    """The blocks that a pass completes and stores, with the ring rows that they still need.

    `sequence`, `index` int64 [m]: block w of a sequence. `sources` int64 [m, S]: rows of the tensor [history | pass].
    `history` int64 [h]: ring slots to lay in front of the pass's rows.
    """

    sequence: Ints
    index: Ints
    sources: Ints
    history: Ints


@dataclass(frozen=True, slots=True)
class RingWrites:
    """`rows` int64 [w] of the pass go to the ring slots `slots` int64 [w]."""

    rows: Ints
    slots: Ints


def spans(first: Ints, count: Ints) -> Ints:
    """first[i], first[i] + 1, ... of `count[i]` numbers, one i after the other."""
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(int(count.sum()), dtype=np.int64)


def completed_entries(chunks: ChunkArrays, ratio: int, *, overlap: bool, ring_len: int) -> CompletedEntries:
    """Blocks of `ratio` tokens whose last token lies in the pass, unless they end by `stored_len`: those exist."""
    assert not (chunks.stored_len % ratio).any(), chunks.stored_len
    first = np.maximum(chunks.start, chunks.stored_len) // ratio
    count = np.maximum((chunks.start + chunks.length) // ratio - first, 0)
    reach = ratio if overlap else 0
    oldest = np.maximum(first * ratio - reach, 0)
    num_history = np.where(count > 0, np.maximum(chunks.start - oldest, 0), 0)
    position = spans(oldest, num_history)
    history = np.repeat(chunks.sequence * ring_len, num_history) + position % ring_len
    owner = np.repeat(np.arange(len(count)), count)
    index = spans(first, count)
    # The block before the first one does not exist: any row stands in, the compressor masks it.
    needed = np.maximum(index[:, None] * ratio + np.arange(-reach, ratio, dtype=np.int64), 0)
    in_history = (np.cumsum(num_history) - num_history - oldest)[owner, None] + needed
    in_pass = len(history) + (chunks.start_row - chunks.start)[owner, None] + needed
    sources = np.where(needed < chunks.start[owner, None], in_history, in_pass)
    return CompletedEntries(chunks.sequence[owner], index, sources, history)


def ring_writes(chunks: ChunkArrays, ring_len: int) -> RingWrites:
    """The last rows of every chunk, as many as the ring holds."""
    count = np.minimum(chunks.length, ring_len)
    skipped = chunks.length - count
    position = spans(chunks.start + skipped, count)
    slots = np.repeat(chunks.sequence * ring_len, count) + position % ring_len
    return RingWrites(spans(chunks.start_row + skipped, count), slots)


def snapshot_writes(position: Ints, window_id: Ints, page_size: int) -> RingWrites:
    """Rows just before a page boundary, and their slots in the snapshot pool.

    Args:
        position, window_id: int64 [rows], of every row of the pass.
    """
    place = position % page_size - (page_size - SNAPSHOT_ROWS)
    rows = np.flatnonzero(place >= 0)
    return RingWrites(rows, window_id[rows] * SNAPSHOT_ROWS + place[rows])
