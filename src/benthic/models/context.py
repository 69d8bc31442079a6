"""What a forward pass is about, and what attention asks of the world around it.

A pass is a flat list of rows, one a token. Models know no cache: a layer hands this pass's entries to an
`AttentionContext` and is told what each row may read. Two contexts exist: whole packed sequences (training and
scoring, differentiable) and a cache (serving).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from benthic.kernels.compress_kv import CompletedBlocks
from benthic.kernels.entry_write import BlockEnds, RawState, RowTarget
from benthic.kernels.kv_storage import KeyForm
from benthic.kernels.rope import RopeTable
from benthic.kernels.sparse_attention import IndexKeys, Keys, TilePlan
from benthic.models.beside import T

LatentForm = Literal["absorbed", "expanded"]
"""How latent attention is computed (attention/latent.py); nothing in models without it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of consecutive tokens of one sequence inside a pass.

    Rows `start_row .. start_row + length - 1` hold positions `start .. start + length - 1` of sequence `sequence`.
    Compression blocks that end at or before position `stored_len` exist already and are not completed again.
    """

    sequence: int
    start_row: int
    start: int
    length: int
    stored_len: int = 0


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

    def live(self) -> Tensor | None:
        """int [1] on the device: how many rows are real; None where all are."""
        if self.num_rows == len(self.token_ids):
            return None
        return self.token_ids.new_full((1,), self.num_rows)


class EntryPlaces(Protocol):
    """Where a pass of serving writes, for operations that write in place (`kernels.entry_write`)."""

    def window(self, layer: int) -> RowTarget:
        """Where the kv rows of this pass go."""
        ...

    def block_ends(self, ratio: int) -> BlockEnds:
        """What the pass does to the compressors of layers of that ratio."""
        ...

    def raw_state(self, layer: int) -> RawState:
        """The layer's raw compressor rows of earlier passes."""
        ...

    def entries(self, layer: int) -> tuple[Tensor, KeyForm | None]:
        """The layer's buffer of entries, and the form in which they lie there."""
        ...

    def index(self, layer: int) -> tuple[Tensor, KeyForm | None]:
        """The layer's buffer of indexer keys likewise."""
        ...


class AttentionContext(Protocol):
    """Stores a pass's entries and says what each row may read.

    `layer` counts main layers, then MTP blocks. Within a layer the calls come in the order of this list: writes
    before reads is all the ordering that attention needs. Layers of ratio 1 (latent attention) have no window and no
    compressor: their entries, and their indexer keys, are those of this pass's real rows, one each and in order.
    """

    rows: Rows
    latent_form: LatentForm
    workspace_bytes: int
    """Bound of attention's temporaries that grow with the context."""

    def beside(self, work: Callable[[], T]) -> Callable[[], T]:
        """Starts a branch of a layer; see `Beside`."""
        ...

    @property
    def places(self) -> EntryPlaces | None:
        """Where V4's layers write by fused operations, the bits of those that can be differentiated.

        None: they hand what they made to the `write_` methods. Else these give the buffers, called without entries.
        """
        ...

    def rope(self, ratio: int) -> RopeTable:
        """Rotations of this pass's rows in a layer of that compression ratio."""
        ...

    def entry_rope(self, ratio: int) -> RopeTable:
        """Rotations of the entries that this pass completes, at the first token of each block."""
        ...

    def completed(self, ratio: int) -> CompletedBlocks | None:
        """The compression blocks whose last token lies in this pass; None when there are none."""
        ...

    def plan(self, ratio: int) -> TilePlan:
        """Which keys each row may read in a layer of that ratio."""
        ...

    def write_window(self, layer: int, entries: Tensor) -> Keys:
        """Stores the kv entries [R, d] of this pass's rows; returns the kv buffer [slots, d]."""
        ...

    def write_raw(self, layer: int, raw: Tensor) -> Tensor:
        """Stores raw compressor rows [R, w] (kv compressor's A | B, then the indexer's); returns their buffer."""
        ...

    def write_entries(self, layer: int, entries: Tensor | None) -> Keys:
        """Stores completed entries [m, d] (None when there are none); returns the kv buffer, a window included."""
        ...

    def write_index(self, layer: int, entries: Tensor | None) -> IndexKeys:
        """Stores completed indexer keys [m, di]; returns their buffer."""
        ...
