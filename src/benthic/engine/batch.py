"""From a plan to the index arrays of one pass. All of it is work on the host, proportional to the pass's rows."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benthic.engine.host_copy import to_device
from benthic.engine.plan import ScheduledChunk, StepPlan
from benthic.engine.sampled_row import SampledRow
from benthic.engine.speculate import verify_layout
from benthic.models.context import Chunk, Rows

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RelayedRows:
    """Rows whose token the host does not know yet: `rows` int64 [n] take it from `request_rows` int64 [n]."""

    rows: Tensor
    request_rows: Tensor


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The N rows that a token is drawn from, those of S chunks one after the other; tensors are on the device.

    `row_index` int64 [max(N, min_rows)]: their rows, the first repeated at the end so that products are exact.
    `request_rows` int64 [S]. `places`, `drafts`: see `speculate.VerifyLayout`.
    """

    chunks: tuple[ScheduledChunk, ...]
    rows: tuple[SampledRow, ...]
    row_index: Tensor
    request_rows: Tensor
    places: Tensor
    drafts: Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One pass. `next_ids` int64 [R]: the token after each row where the host knows it, else 0."""

    plan: StepPlan
    rows: Rows
    next_ids: Tensor
    relayed: RelayedRows | None
    sampled: SampledRows | None

    @property
    def has_drafts(self) -> bool:
        """Whether any row verifies one."""
        return self.sampled is not None and self.sampled.drafts.shape[1] > 0


def build_batch(plan: StepPlan, min_rows: int, device: torch.device) -> Batch:
    """Lays the plan's chunks end to end; `Chunk.sequence` is the request row.

    Args:
        min_rows: dummy rows are added up to this many, so that products are exact on CPU.
    """
    chunks, start_row = [], 0
    for chunk in plan.chunks:
        chunks.append(Chunk(chunk.row, start_row, chunk.start, chunk.length, chunk.stored_len))
        start_row += chunk.length
    host = np.zeros((3, max(start_row, min_rows)), dtype=np.int64)
    _fill(host, plan.chunks)
    token_ids, positions, next_ids = to_device(torch.from_numpy(host), device)
    rows = Rows(token_ids, positions, start_row, tuple(chunks))
    return Batch(plan, rows, next_ids, _relayed(plan.chunks, device), _sampled(rows, plan.chunks, min_rows, device))


def single_rows(
    request_rows: Seq[int], positions: Seq[int], token_ids: Seq[int], min_rows: int, device: torch.device
) -> Rows:
    """A pass of one row a sequence."""
    count = len(request_rows)
    host = np.zeros((2, max(count, min_rows)), dtype=np.int64)
    host[:, :count] = (token_ids, positions)
    ids, where = to_device(torch.from_numpy(host), device)
    chunks = tuple(
        Chunk(row, i, position, 1) for i, (row, position) in enumerate(zip(request_rows, positions, strict=True))
    )
    return Rows(ids, where, count, chunks)


def _fill(host: Ints, chunks: Seq[ScheduledChunk]) -> None:
    """Writes token ids, positions and next ids of all rows."""
    lengths = np.fromiter((chunk.length for chunk in chunks), np.int64, len(chunks))
    starts = np.fromiter((chunk.start for chunk in chunks), np.int64, len(chunks))
    first = np.cumsum(lengths) - lengths
    num_rows = int(lengths.sum())
    ids: list[int] = []
    following: list[int] = []
    for chunk in chunks:
        if chunk.length == 1:
            ids.append(0 if chunk.is_relayed else chunk.sequence.tokens[chunk.start])
        else:
            own = chunk.token_ids()
            ids += own
            following += own[1:]
        tokens, end = chunk.sequence.tokens, chunk.start + chunk.length
        # Not there after the last known token: of a chunk that samples, or of a request that only scores its prompt.
        following.append(tokens[end] if end < len(tokens) else 0)
    host[0, :num_rows] = ids
    host[1, :num_rows] = np.arange(num_rows) + np.repeat(starts - first, lengths)
    host[2, :num_rows] = following


def _relayed(chunks: Seq[ScheduledChunk], device: torch.device) -> RelayedRows | None:
    found, start_row = [], 0
    for chunk in chunks:
        if chunk.is_relayed:
            found.append((start_row, chunk.row))
        start_row += chunk.length
    if not found:
        return None
    rows, request_rows = to_device(torch.tensor(found).t().contiguous(), device)
    return RelayedRows(rows, request_rows)


def _sampled(rows: Rows, chunks: Seq[ScheduledChunk], min_rows: int, device: torch.device) -> SampledRows | None:
    sampling, sampled, index = [], [], []
    for run, chunk in zip(rows.chunks, chunks, strict=True):
        if not chunk.samples:
            continue
        sampling.append(chunk)
        drafts = chunk.drafts
        last = run.start_row + run.length - 1 - len(drafts)
        position = chunk.start + chunk.length - len(drafts)
        sampled.append(SampledRow(chunk.sequence, position))
        index.append(last)
        for count in range(1, len(drafts) + 1):
            sampled.append(SampledRow(chunk.sequence, position + count, drafts[:count]))
            index.append(last + count)
    if not sampling:
        return None
    layout = verify_layout([chunk.drafts for chunk in sampling])
    padded = index + index[:1] * (min_rows - len(index))
    arrays = (np.array(padded), np.fromiter((c.row for c in sampling), np.int64, len(sampling)), *layout)
    tensors = [to_device(torch.from_numpy(array), device) for array in arrays]
    return SampledRows(tuple(sampling), tuple(sampled), *tensors)
