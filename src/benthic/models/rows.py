"""From token lists to the flat rows of a pass."""

from collections.abc import Sequence

import numpy as np
import torch

from benthic.models.context import Chunk, Rows


def build_rows(
    runs: Sequence[tuple[int, int, Sequence[int]]],
    min_rows: int,
    device: torch.device | str = "cpu",
    *,
    stored_lens: Sequence[int] | None = None,
) -> Rows:
    """Lays runs of tokens end to end.

    Args:
        runs: (sequence, first position, token ids), each a run of consecutive tokens; none empty.
        min_rows: dummy rows are added up to this many, so that products are exact on CPU.
        stored_lens: `Chunk.stored_len` of each run; 0 if None.

    Returns:
        Rows on `device`.
    """
    chunks, start_row = [], 0
    for (sequence, start, ids), stored_len in zip(runs, stored_lens or [0] * len(runs), strict=True):
        assert len(ids) > 0, f"an empty run of sequence {sequence}"
        chunks.append(Chunk(sequence, start_row, start, len(ids), stored_len))
        start_row += len(ids)
    total = max(start_row, min_rows)
    token_ids = np.zeros(total, dtype=np.int64)
    positions = np.zeros(total, dtype=np.int64)
    for chunk, (_, _, ids) in zip(chunks, runs, strict=True):
        rows = slice(chunk.start_row, chunk.start_row + chunk.length)
        token_ids[rows] = ids
        positions[rows] = np.arange(chunk.start, chunk.start + chunk.length)
    both = torch.from_numpy(np.stack([token_ids, positions])).to(device)
    return Rows(both[0], both[1], start_row, tuple(chunks))
