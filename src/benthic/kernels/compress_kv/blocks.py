"""Which compression blocks a pass completes, and where their raw rows lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benthic.kernels.sparse_attention.plan import ChunkLike

Ints = npt.NDArray[np.int64]


class StoredChunk(ChunkLike, Protocol):
    """A run of tokens, and how far its sequence's entries exist already (models.context.Chunk)."""

    @property
    def stored_len(self) -> int: ...


@dataclass(frozen=True, slots=True)
class CompletedBlocks:
    """Blocks whose last token lies in this pass: block w of a sequence covers tokens w*ratio .. w*ratio + ratio - 1.

    `positions` int64 [m]: w * ratio, the rotary position of the entry.
    `sources` int64 [m, S]: slots of the raw rows, S = 128 for ratio 128; for ratio 4 S = 8, predecessor block first.
    `first` bool [m, 1, 1]: the block has no predecessor (ratio 4, w = 0); None when no such block is here.
    `sequence`, `index` int64 [m] on the host: which sequence and w.
    """

    ratio: int
    positions: Tensor
    sources: Tensor
    first: Tensor | None
    sequence: Ints
    index: Ints


def plan_completed(
    chunks: Sequence[StoredChunk], ratio: int, slot_of: Callable[[Ints, Ints], Ints], device: torch.device
) -> CompletedBlocks | None:
    """Finds the blocks that the chunks complete, but for those that end at or before their `stored_len`.

    Args:
        slot_of: (sequence [..], position [..]) -> slot of that token's raw row.

    Returns:
        None when no block ends in this pass.
    """
    sequences, indices = [], []
    for chunk in chunks:
        begin, end = max(chunk.start, chunk.stored_len) // ratio, (chunk.start + chunk.length) // ratio
        if begin >= end:
            continue
        done = np.arange(begin, end, dtype=np.int64)
        indices.append(done)
        sequences.append(np.full(len(done), chunk.sequence, dtype=np.int64))
    if not indices:
        return None
    index = np.concatenate(indices)
    sequence = np.concatenate(sequences)
    offset = np.arange(-ratio if ratio == 4 else 0, ratio, dtype=np.int64)
    position = index[:, None] * ratio + offset
    sources = slot_of(np.broadcast_to(sequence[:, None], position.shape), np.maximum(position, 0))
    no_predecessor = index == 0
    first = None
    if ratio == 4 and no_predecessor.any():
        first = torch.from_numpy(no_predecessor[:, None, None]).to(device)
    return CompletedBlocks(
        ratio=ratio,
        positions=torch.from_numpy(index * ratio).to(device),
        sources=torch.from_numpy(np.ascontiguousarray(sources)).to(device),
        first=first,
        sequence=sequence,
        index=index,
    )
