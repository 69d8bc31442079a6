"""From a plan to the device tensors of one pass."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benthic.cache.block_manager import CacheManager
from benthic.cache.buffers import CacheBuffers
from benthic.cache.serving_context import ServingContext
from benthic.engine.plan import StepPlan
from benthic.engine.sequence import Sequence
from benthic.models.config import ModelConfig
from benthic.models.context import Rows
from benthic.models.rows import build_rows


@dataclass(frozen=True, slots=True)
class Batch:
    """One pass on the device.

    `sampled_rows` int64 [max(S, min_rows)] names the row whose hidden state gives each next token; places from S on
    repeat the first, so that the head's product is high enough to be exact. Empty where nobody samples.
    `sequences`: the S sequences that sample, in the plan's order.
    """

    rows: Rows
    context: ServingContext
    sampled_rows: Tensor
    sequences: tuple[Sequence, ...]


def build_batch(
    plan: StepPlan,
    config: ModelConfig,
    cache: CacheManager,
    buffers: CacheBuffers,
    frequencies: Mapping[int, Tensor],
    min_rows: int,
) -> Batch:
    """Lays the plan's chunks end to end; `Chunk.sequence` counts the chunks."""
    device = buffers.kv[0].device
    runs = [
        (place, chunk.start, chunk.sequence.tokens[chunk.start : chunk.start + chunk.length])
        for place, chunk in enumerate(plan.chunks)
    ]
    rows = build_rows(runs, min_rows, device)
    tables = [cache.tables[chunk.sequence.number] for chunk in plan.chunks]
    context = ServingContext(config, rows, tables, buffers, frequencies)
    last = [
        run.start_row + run.length - 1 for run, chunk in zip(rows.chunks, plan.chunks, strict=True) if chunk.samples
    ]
    padded = last + last[:1] * (min_rows - len(last))
    sequences = tuple(chunk.sequence for chunk in plan.chunks if chunk.samples)
    return Batch(rows, context, torch.tensor(padded, dtype=torch.int64, device=device), sequences)
