"""Inputs of sparse_attention and index_scores: passes over sequences whose keys lie in shuffled pages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.sparse_attention.plan import TILES_PER_GROUP, KeyTables, plan_tiles
from benthic.kernels.sparse_attention.tiles import TilePlan

WINDOW = 128


@dataclass(frozen=True)
class Run:
    """Rows `start_row ..` of a pass: positions `start .. start + length - 1` of sequence `sequence`."""

    sequence: int
    start_row: int
    start: int
    length: int
    stored_len: int = 0


@dataclass(frozen=True)
class Pass:
    """Some runs over two sequences, and where everything lies: window pages first, then pages of entries."""

    ratio: int
    runs: tuple[Run, ...]
    plan: TilePlan
    tables: KeyTables
    num_slots: int
    window: int = WINDOW

    @property
    def num_rows(self) -> int:
        return sum(run.length for run in self.runs)

    def window_slot(self, sequence: int, position: int) -> int:
        page = self.tables.window_page
        return int(self.tables.window[sequence, position // page]) * page + position % page

    def index_slot(self, sequence: int, entry: int) -> int:
        page = self.tables.entry_pages[self.ratio]
        return int(self.tables.entries[self.ratio][sequence, entry // page]) * page + entry % page

    def entry_slot(self, sequence: int, entry: int) -> int:
        return self.tables.entry_base + self.index_slot(sequence, entry)

    def of_runs(self, spans: Sequence[tuple[int, int, int]], tiles_per_group: int = TILES_PER_GROUP) -> "Pass":
        """Other rows over the same keys; `spans` as in `make_pass`."""
        runs, row = [], 0
        for sequence, start, length in spans:
            runs.append(Run(sequence, row, start, length))
            row += length
        plan = plan_tiles(
            runs,
            self.tables,
            [self.ratio],
            window=self.window,
            num_rows=row,
            device=torch.device("cpu"),
            tiles_per_group=tiles_per_group,
        )[self.ratio]
        return replace(self, runs=tuple(runs), plan=plan)


def make_pass(
    ratio: int, spans: Sequence[tuple[int, int, int]], *, longest: int = 300, page: int = 64, window: int = WINDOW
) -> Pass:
    """`spans` are (sequence, start, length), sequence 0 or 1, within `longest` positions.

    `page` is the number of tokens of a window page; a page of entries holds those of `page` tokens, but 64 where that
    is 64: pages as they are packed. Without a window there are no pages of it.
    """
    entry_page = (64 if page == 64 else page // ratio) if ratio else 64
    pages, entry_pages = -(-longest // page), -(-(longest // ratio) // entry_page) if ratio else 0
    window_table = torch.from_numpy(np.random.permutation(2 * pages + 1)[: 2 * pages].reshape(2, -1))
    base = (2 * pages + 1) * page if window else 0
    entries = torch.from_numpy(np.random.permutation(2 * entry_pages + 1)[: 2 * entry_pages].reshape(2, -1))
    tables = KeyTables(
        window_table, page, {ratio: entries} if ratio else {}, {ratio: entry_page} if ratio else {}, base
    )
    num_slots = base + (2 * entry_pages + 1) * entry_page
    empty = TilePlan((), torch.zeros(0, dtype=torch.int64))
    return Pass(ratio, (), empty, tables, num_slots, window).of_runs(spans)


def make_latent_pass(spans: Sequence[tuple[int, int, int]], *, longest: int = 300, page: int = 64) -> Pass:
    """The pass of a layer with latent attention: one entry a token and no window."""
    return make_pass(1, spans, longest=longest, page=page, window=0)


def inputs(where: Pass, dtype: torch.dtype = torch.float32, *, heads: int = 4, dim: int = 16) -> dict[str, Any]:
    """Arguments of sparse_attention."""
    return {
        "query": torch.randn(where.num_rows, heads, dim, dtype=dtype),
        "keys": torch.randn(where.num_slots, dim, dtype=dtype),
        "plan": where.plan,
        "sink": torch.randn(heads, dtype=dtype),
        "scale": dim**-0.5,
    }


def latent_inputs(
    where: Pass, dtype: torch.dtype = torch.float32, *, heads: int = 4, dim: int = 24, value_dim: int = 16
) -> dict[str, Any]:
    """Arguments of sparse_attention in a layer with latent attention."""
    return inputs(where, dtype, heads=heads, dim=dim) | {"sink": None, "value_dim": value_dim}


def index_inputs(where: Pass, dtype: torch.dtype = torch.float32, *, heads: int = 5, dim: int = 8) -> dict[str, Tensor]:
    """Arguments of index_scores but for the tiles."""
    return {
        "query": torch.randn(where.num_rows, heads, dim, dtype=dtype),
        "gamma": torch.randn(where.num_rows, heads, dtype=dtype),
        "keys": torch.randn(where.num_slots, dim, dtype=dtype),
    }


def random_picks(where: Pass, k: int) -> list[Tensor | None]:
    """For each row up to k random entries, seen or not; some rows pick none. The choice is one by position."""
    picks: list[Tensor | None] = []
    for tiles in where.plan.groups:
        chosen = torch.full((*tiles.positions.shape, k), -1, dtype=torch.int32)
        for (tile, place), position in np.ndenumerate(tiles.positions.numpy()):
            rng = np.random.default_rng([int(tiles.sequence[tile]), int(position)])
            listed = rng.permutation((int(position) + 1) // where.ratio + 3)[: rng.integers(0, k + 1)]
            if position % 3 and len(listed):
                chosen[tile, place, : len(listed)] = torch.from_numpy(np.sort(listed).astype(np.int32))
        picks.append(chosen)
    return picks
