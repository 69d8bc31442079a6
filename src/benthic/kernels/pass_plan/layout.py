"""What goes into the plan of a pass of single rows and what comes out of it, in buffers whose addresses stay.

A row is one token of one sequence. Rows of one sequence are consecutive and of consecutive positions: one row when it
decodes, one and its drafts when it verifies. All that a layer needs to know of them follows from the request row, the
position and the page tables, so a captured pass is fed by a few numbers a row.

Everything lies in three flat buffers, so that one launch writes all of it and a smaller pass uses the front of each
part.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from benthic.kernels.rope import RopeTable

REAL, RELAYED = 1, 2
"""Bits of Column.FLAGS: the row is no dummy; its token is the newest one of its request row, not the given one."""

ROW_PARTS, ENTRY_PARTS, FLOAT_PARTS = 10, 5, 3
"""Numbers of a row, of its block in a compressed ratio besides the sources, and floats of a row besides turns."""

ROW_UNIT = 64
"""Buffers are made for a multiple of so many rows: parts then start at addresses that any kernel may load from."""


class Column(IntEnum):
    """What the host says of a row, int64 each."""

    TOKEN = 0
    POSITION = 1
    REQUEST_ROW = 2
    FLAGS = 3
    OFFSET = 4
    """Rows of the same sequence before it in the pass."""
    NEXT_DRAFT = 5
    """The draft in the next row, which the token drawn here may prove right; -1 in a sequence's last row."""
    SEED = 6
    TOP_K = 7
    TEMPERATURE = 8
    """The bits of a float64, as of the next two."""
    TOP_P = 9
    MIN_P = 10
    SEQUENCE = 11
    """Which of the pass's sequences it belongs to, from 0 on."""
    NUM_SEQUENCES = 12
    """How many there are; the same in every row."""


@dataclass(frozen=True, slots=True)
class RatioShape:
    """Layers that make one entry of `ratio` tokens; `reach`: tokens before its own that an entry is made of.

    `ring_len`: rows of the ring that holds what is not an entry yet; 0 for ratio 1. A pass writes its rows into the
    ring before it reads them there, so the ring holds an entry's rows besides all those that may be rejected.
    `table`: which rotary frequencies its layers turn by.
    """

    ratio: int
    reach: int
    ring_len: int
    table: int

    @property
    def num_sources(self) -> int:
        """Raw rows that an entry is made of; 0 for ratio 1."""
        return self.ratio + self.reach if self.ratio > 1 else 0


@dataclass(frozen=True, slots=True)
class PlanShape:
    """What a model and its cache say of every plan.

    `page_size` tokens a page; `has_windows`: there are window pages; `snapshot_rows`: raw rows before a page boundary
    that are kept with the window, 0 for none. `ratios`: of the layers that make entries, ascending.
    `num_tables` sets of `num_pairs` rotary frequencies, the sines and cosines of which are multiplied by `amplitude`.
    """

    page_size: int
    has_windows: bool
    snapshot_rows: int
    ratios: tuple[RatioShape, ...]
    num_tables: int
    num_pairs: int
    amplitude: float = 1.0

    @property
    def compressed(self) -> tuple[RatioShape, ...]:
        """The ratios of layers with a compressor."""
        return tuple(shape for shape in self.ratios if shape.ratio > 1)


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """Of R rows, what concerns the block of `ratio` tokens that a row lies in; it is complete after its last one.

    `slots` int64 [R]: the entry's slot, -1 where the row is not the block's last or is a dummy. `first_tokens` int64
    [R], `sources` int64 [R, S] in the rings of all request rows, `is_first` bool [R, 1, 1]: the block has none before
    it. `ring_slots` int64 [R]: where the row's own raw row goes, -1 for dummies; `rings` int64 [R]: the first slot of
    its ring, likewise. `ends` int64 [R]: the row itself where a block ends in it, else -1. `rope`: at the first tokens.
    """

    slots: Tensor
    ring_slots: Tensor
    first_tokens: Tensor
    rings: Tensor
    ends: Tensor
    sources: Tensor
    is_first: Tensor
    rope: RopeTable


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """How a token is drawn from each of R rows, as `kernels.sample` takes it.

    int64 [R]: `seeds`, `top_k`, `positions` (of the tokens to be drawn). float32 [R]: `temperature`, `top_p`, `min_p`.
    """

    seeds: Tensor
    positions: Tensor
    top_k: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor


@dataclass(frozen=True, slots=True)
class RowPlan:
    """The plan of R rows; a slot of -1 says that nothing is written.

    int64 [R]: `token_ids`, `positions`, `request_rows`, `window_slots`, `snapshot_slots`, `before` (rows of the same
    sequence before it in the pass). `token_slots`: of the entries of one token each, where a ratio is 1.
    `entries[ratio]`: of the layers with a compressor. `ropes[table]`: rotations of the rows.
    """

    token_ids: Tensor
    positions: Tensor
    request_rows: Tensor
    window_slots: Tensor
    snapshot_slots: Tensor
    token_slots: Tensor
    before: Tensor
    draw: DrawPlan
    entries: dict[int, EntryPlan]
    ropes: tuple[RopeTable, ...]


class PlanBuffers:
    """Memory for plans of up to `capacity` rows.

    `words` int64: the parts of [capacity] of `RowPlan` and `DrawPlan`, then for each compressed ratio those of
    `EntryPlan` and its sources [capacity, S]. `floats` float32: cosines and sines [capacity, pairs] of every table,
    then of every compressed ratio, then the floats of `DrawPlan` [capacity]. `flags` uint8 [capacity] of every
    compressed ratio.
    """

    def __init__(self, shape: PlanShape, num_rows: int, device: torch.device) -> None:
        self.shape, self.capacity = shape, -(-num_rows // ROW_UNIT) * ROW_UNIT
        compressed = shape.compressed
        parts = ROW_PARTS + sum(ENTRY_PARTS + ratio.num_sources for ratio in compressed)
        floats = (shape.num_tables + len(compressed)) * 2 * shape.num_pairs + FLOAT_PARTS
        self.words = torch.zeros(parts * self.capacity, dtype=torch.int64, device=device)
        self.floats = torch.zeros(floats * self.capacity, device=device)
        self.flags = torch.zeros(max(1, len(compressed)) * self.capacity, dtype=torch.uint8, device=device)

    def head(self, num_rows: int) -> RowPlan:
        """The plan of the first `num_rows` rows: views."""
        assert num_rows <= self.capacity, (num_rows, self.capacity)
        words = iter(self._words(num_rows))
        turns = iter(self._turns(num_rows))
        token_ids, positions, next_positions, request_rows, *rest = (next(words) for _ in range(ROW_PARTS))
        window_slots, snapshot_slots, token_slots, before, seeds, top_k = rest
        temperature, top_p, min_p = self.floats[-FLOAT_PARTS * self.capacity :].view(FLOAT_PARTS, -1)[:, :num_rows]
        ropes = tuple(next(turns) for _ in range(self.shape.num_tables))
        entries = {}
        for number, ratio in enumerate(self.shape.compressed):
            own_slots, ring_slots, first_tokens, rings, ends = (next(words) for _ in range(ENTRY_PARTS))
            first = self.flags[number * self.capacity :][:num_rows].view(torch.bool)[:, None, None]
            entries[ratio.ratio] = EntryPlan(
                slots=own_slots,
                ring_slots=ring_slots,
                first_tokens=first_tokens,
                rings=rings,
                ends=ends,
                sources=next(words),
                is_first=first,
                rope=next(turns),
            )
        return RowPlan(
            token_ids=token_ids,
            positions=positions,
            request_rows=request_rows,
            window_slots=window_slots,
            snapshot_slots=snapshot_slots,
            token_slots=token_slots,
            before=before,
            draw=DrawPlan(seeds, next_positions, top_k, temperature, top_p, min_p),
            entries=entries,
            ropes=ropes,
        )

    def _words(self, num_rows: int) -> Iterator[Tensor]:
        widths = [1] * ROW_PARTS
        for ratio in self.shape.compressed:
            widths += [1] * ENTRY_PARTS + [ratio.num_sources]
        start = 0
        for width in widths:
            part = self.words[start * self.capacity : (start + width) * self.capacity]
            yield part[:num_rows] if width == 1 else part.view(self.capacity, width)[:num_rows]
            start += width

    def _turns(self, num_rows: int) -> Iterator[RopeTable]:
        tables = self.floats[: -FLOAT_PARTS * self.capacity].view(-1, 2, self.capacity, self.shape.num_pairs)
        for table in tables:
            yield RopeTable(table[0, :num_rows], table[1, :num_rows])
