"""Inputs of sparse_attention and index_scores: passes over sequences whose keys lie in shuffled blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benthic.kernels.sparse_attention.plan import BLOCK, BlockTables, plan_tiles
from benthic.kernels.sparse_attention.tiles import TilePlan

WINDOW = 128


@dataclass(frozen=True)
class Run:
    """Rows `start_row ..` of a pass: positions `start .. start + length - 1` of sequence `sequence`."""

    sequence: int
    start_row: int
    start: int
    length: int


@dataclass(frozen=True)
class Pass:
    """Some runs over two sequences of 300 positions, and where everything lies."""

    ratio: int
    runs: tuple[Run, ...]
    plan: TilePlan
    tables: BlockTables
    num_slots: int

    @property
    def num_rows(self) -> int:
        return sum(run.length for run in self.runs)

    def window_slot(self, sequence: int, position: int) -> int:
        return int(self.tables.window[sequence, position // BLOCK]) * BLOCK + position % BLOCK

    def entry_slot(self, sequence: int, entry: int) -> int:
        return int(self.tables.entries[self.ratio][sequence, entry // BLOCK]) * BLOCK + entry % BLOCK


def make_pass(ratio: int, spans: Sequence[tuple[int, int, int]], *, longest: int = 300) -> Pass:
    """`spans` are (sequence, start, length), sequence 0 or 1, within `longest` positions."""
    runs, row = [], 0
    for sequence, start, length in spans:
        runs.append(Run(sequence, row, start, length))
        row += length
    window_blocks, entry_blocks = -(-longest // BLOCK), -(-(longest // max(ratio, 1)) // BLOCK) if ratio else 0
    places = np.random.permutation(2 * (window_blocks + entry_blocks)).astype(np.int64)
    window = places[: 2 * window_blocks].reshape(2, -1)
    entries = places[2 * window_blocks :].reshape(2, -1)
    tables = BlockTables(window, {ratio: entries} if ratio else {}, entries if ratio == 4 else None)
    plan = plan_tiles(runs, tables, [ratio], window=WINDOW, num_rows=row, device=torch.device("cpu"))[ratio]
    return Pass(ratio, tuple(runs), plan, tables, len(places) * BLOCK)


def inputs(where: Pass, dtype: torch.dtype = torch.float32, *, heads: int = 4, dim: int = 16) -> dict[str, Any]:
    return {
        "query": torch.randn(where.num_rows, heads, dim, dtype=dtype),
        "keys": torch.randn(where.num_slots, dim, dtype=dtype),
        "plan": where.plan,
        "sink": torch.randn(heads, dtype=dtype),
        "scale": dim**-0.5,
    }


def kept_entries(where: Pass) -> list[Tensor]:
    """For each group a random choice of entries; some rows keep none."""
    shapes = [(len(tiles.blocks), tiles.rows_per_tile, tiles.blocks.shape[1] - 3) for tiles in where.plan.groups]
    return [torch.rand(n, q, blocks * BLOCK) * torch.rand(n, q, 1).round() > 0.3 for n, q, blocks in shapes]
