"""Documents into batches of a fixed number of rows: every token exactly once, documents whole and isolated.

A batch is one flat run of rows, one a token, the documents one after the other; filler documents of token 0, which
no loss counts, make it full, so that every batch has the same shape:

    row        0 1 2 3 4 5 6 7 8 9
    document   a a a a b b b f f f
    position   0 1 2 3 0 1 2 0 1 2
    target     1 2 3 . 1 2 . . . .     (the position that is predicted; a dot: nothing, weight 0)

Everything here is plain numpy, so that worker processes can do it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benthic.errors import ConfigError, DataError
from benthic.kernels.sparse_attention import BLOCK
from benthic.train.item import Ids, Item, Weights, split_item

Oversize = Literal["error", "split"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape that all batches of a stage share.

    `budget` rows a batch, in documents of at most `max_len` tokens. Attention works in blocks of 64 positions; the
    documents of a batch, fillers included, take at most `max_blocks` of them. `mtp_depth` multi-token-prediction
    blocks; `oversize` says what happens to a longer document.
    """

    budget: int
    max_blocks: int
    max_len: int
    mtp_depth: int = 0
    oversize: Oversize = "error"

    def __post_init__(self) -> None:
        if not 2 <= self.max_len <= self.budget:
            raise ConfigError(f"max_len ({self.max_len}) must lie between 2 and the {self.budget} rows of a batch")
        least = 1 + self.filler_blocks(self.budget)
        if self.max_blocks < least:
            raise ConfigError(
                f"max_blocks ({self.max_blocks}) must be at least {least} for {self.budget} rows in documents of up to "
                f"{self.max_len} tokens"
            )

    def filler_blocks(self, room: int) -> int:
        """Blocks that filler documents take in `room` rows."""
        whole, rest = divmod(room, self.max_len)
        return whole * num_blocks(self.max_len) + num_blocks(rest)


def num_blocks(length: int) -> int:
    """Blocks of positions that a document of that length takes."""
    return -(-length // BLOCK)


@dataclass(frozen=True, slots=True, eq=False)
class TrainBatch:
    """Packed documents; R = the budget, S = 1 + mtp_depth.

    `token_ids`, `positions` int32 [R]. `targets` int32 [S, R]: `targets[k]` holds the token k + 1 after the row's own
    in the same document, 0 where the document has ended; `weights` float32 [S, R] is that token's loss weight, 0
    there. Multi-token-prediction block k reads `targets[k]` as its next ids and predicts `targets[k + 1]`.
    `starts` and `lengths` int32 [documents] say where the documents lie: first those with a tag, then the fillers.
    """

    token_ids: Ids
    positions: Ids
    targets: Ids
    weights: Weights
    starts: Ids
    lengths: Ids
    tags: tuple[str, ...]

    @property
    def budget(self) -> int:
        """Rows, fillers included."""
        return len(self.token_ids)

    @property
    def num_tokens(self) -> int:
        """Rows of documents that are no fillers; they come first."""
        return int(self.lengths[: len(self.tags)].sum())

    @property
    def document_of_row(self) -> NDArray[np.int64]:
        """Index of each row's document, int64 [R]."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


def pack(items: Sequence[Item], layout: Layout) -> TrainBatch:
    """Lays documents out in one batch, in the order given, and fills it up.

    Raises DataError if they do not fit; `pack_all` distributes any number of documents over batches.
    """
    room = layout.budget - sum(len(item) for item in items)
    fillers = _filler_lengths(room, layout.max_len)
    lengths = np.array([*(len(item) for item in items), *fillers], np.int32)
    blocks, longest = sum(num_blocks(length) for length in lengths.tolist()), int(lengths.max(initial=0))
    if room < 0 or longest > layout.max_len or blocks > layout.max_blocks:
        raise DataError(
            f"{len(items)} documents of {layout.budget - room} tokens in {blocks} blocks, the longest of {longest}, do "
            f"not fit in a batch of {layout.budget} rows, {layout.max_blocks} blocks and {layout.max_len} tokens each"
        )
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    token_ids = np.zeros(layout.budget, np.int32)
    shifts = 1 + layout.mtp_depth
    targets = np.zeros((shifts, layout.budget), np.int32)
    weights = np.zeros((shifts, layout.budget), np.float32)
    for item, start in zip(items, starts.tolist(), strict=False):
        end = start + len(item)
        token_ids[start:end] = item.token_ids
        for shift in range(1, min(shifts, len(item) - 1) + 1):
            targets[shift - 1, start : end - shift] = item.token_ids[shift:]
            weights[shift - 1, start : end - shift] = item.weights[shift:]
    positions = (np.arange(layout.budget) - np.repeat(starts, lengths)).astype(np.int32)
    return TrainBatch(token_ids, positions, targets, weights, starts, lengths, tuple(item.tag for item in items))


def _filler_lengths(room: int, max_len: int) -> list[int]:
    return [min(max_len, room - start) for start in range(0, room, max_len)]


def pack_all(items: Iterable[Item], layout: Layout, num_open: int = 8) -> list[TrainBatch]:
    """Distributes documents over as many batches as they need (see `Packer`)."""
    packer = Packer(layout, num_open)
    batches = [batch for item in items for batch in packer.put(item)]
    return batches + packer.flush()


@dataclass(slots=True)
class _Bin:
    room: int
    blocks: int = 0
    items: list[Item] = field(default_factory=list)


class Packer:
    """Best-fit packing over a stream: a document goes where it leaves the least room.

    At most `num_open` batches are open; when a document fits in none of them, the fullest is closed and handed out.
    The result depends on the order of the documents only.
    """

    def __init__(self, layout: Layout, num_open: int = 8) -> None:
        assert num_open > 0
        self.layout = layout
        self.num_open = num_open
        self._bins: list[_Bin] = []

    def put(self, item: Item) -> list[TrainBatch]:
        """Places one document; returns the batches that were closed to make room. Raises as `pieces` does."""
        return [batch for piece in self.pieces(item) for batch in self._place(piece)]

    def pieces(self, item: Item) -> list[Item]:
        """The document itself, or what it is cut into where it is longer than `max_len`.

        Raises DataError for such a document unless the layout says to split.
        """
        if len(item) <= self.layout.max_len:
            return [item]
        if self.layout.oversize == "error":
            raise DataError(
                f"a document of {len(item)} tokens is longer than max_len ({self.layout.max_len}); "
                'raise it, or set oversize = "split" to cut such documents into separate ones'
            )
        return split_item(item, self.layout.max_len)

    def fits(self, item: Item) -> bool:
        """Whether the document can be placed without closing a batch."""
        return len(self._bins) < self.num_open or self._best(len(item)) is not None

    def flush(self) -> list[TrainBatch]:
        """Closes and returns every open batch, in the order in which they were opened."""
        batches = [pack(open_bin.items, self.layout) for open_bin in self._bins]
        self._bins = []
        return batches

    @property
    def free_rows(self) -> int:
        """Rows still free in the batches that may be open at once."""
        unopened = self.num_open - len(self._bins)
        return unopened * self.layout.budget + sum(open_bin.room for open_bin in self._bins)

    def _place(self, item: Item) -> list[TrainBatch]:
        closed = []
        best = self._best(len(item))
        if best is None:
            if len(self._bins) == self.num_open:
                fullest = min(self._bins, key=lambda open_bin: open_bin.room)
                self._bins.remove(fullest)
                closed.append(pack(fullest.items, self.layout))
            best = _Bin(self.layout.budget)
            self._bins.append(best)
        best.items.append(item)
        best.room -= len(item)
        best.blocks += num_blocks(len(item))
        return closed

    def _best(self, length: int) -> _Bin | None:
        return min((b for b in self._bins if self._has_place(b, length)), key=lambda b: b.room, default=None)

    def _has_place(self, candidate: _Bin, length: int) -> bool:
        room = candidate.room - length
        if room < 0:
            return False
        return candidate.blocks + num_blocks(length) + self.layout.filler_blocks(room) <= self.layout.max_blocks
