"""What a forward pass is about, and what attention asks of the world around it.

A pass is a flat list of rows, one a token. Models know no cache: a layer hands this pass's entries to an
`AttentionContext` and is told what each row may read. Two contexts exist: whole packed sequences (training and
scoring, differentiable) and a paged cache (serving).
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from benthic.kernels.compress_kv import CompletedBlocks
from benthic.kernels.rope import RopeTable
from benthic.kernels.sparse_attention import KeyTiles


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of consecutive tokens of one sequence inside a pass.

    Rows `start_row .. start_row + length - 1` hold positions `start .. start + length - 1` of sequence `sequence`.
    """

    sequence: int
    start_row: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one pass.

    `token_ids` and `positions` are int64 [R] with R >= `num_rows`: rows from `num_rows` on are dummies (token 0 at
    position 0) that make products high enough to be exact on CPU; they read no cache and write nowhere.
    """

    token_ids: Tensor
    positions: Tensor
    num_rows: int
    chunks: tuple[Chunk, ...]


class AttentionContext(Protocol):
    """Stores a pass's entries and says what each row may read. `layer` counts main layers, then MTP blocks."""

    rows: Rows

    def rope(self, ratio: int, rows: str = "query") -> RopeTable:
        """Rotations for this pass's rows in a layer of that ratio; rows="entry" for its completed blocks."""

    def write_window(self, layer: int, entries: Tensor) -> Tensor:
        """Stores kv entries [R, d] of this pass's rows; returns the buffer that window key tiles index."""

    def write_raw(self, layer: int, name: str, raw: Tensor) -> Tensor:
        """Stores the compressor's raw rows [R, 2*c*d] fp32; returns the buffer that completed blocks index."""

    def write_entries(self, layer: int, name: str, entries: Tensor | None) -> Tensor:
        """Stores the entries of the blocks completed by this pass; returns the buffer of all entries."""

    def completed(self, ratio: int) -> CompletedBlocks | None:
        """The compression blocks whose last token lies in this pass."""

    def tiles(self, ratio: int) -> tuple[KeyTiles, ...]:
        """Query tiles with the key blocks they may read in a layer of that ratio."""
