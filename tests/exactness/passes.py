"""Passes over several sequences through the serving cache, in any cutting and mixture, and packed as in training."""

import random
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from benthic.cache.block_manager import CacheManager
from benthic.cache.buffers import CacheBuffers
from benthic.cache.layout import plan_layout
from benthic.cache.serving_context import ServingContext
from benthic.models.packed import PackedContext
from benthic.models.rotary import layer_frequencies
from benthic.models.rows import build_rows
from benthic.models.transformer import Transformer

Sequences = Sequence[Sequence[int]]
Pass = list[tuple[int, int, int]]
"""One pass: (sequence, first position, end), in the order of its rows."""


@torch.no_grad()
def packed(model: Transformer, sequences: Sequences) -> list[Tensor]:
    """Logits of whole sequences in one packed pass."""
    rows = build_rows([(i, 0, ids) for i, ids in enumerate(sequences)], model.min_rows)
    logits = model.logits(model.hidden(model(rows, PackedContext(model.config, rows))))
    return list(logits[: rows.num_rows].split([len(ids) for ids in sequences]))


@torch.no_grad()
def served(model: Transformer, sequences: Sequences, schedule: Iterable[Pass]) -> list[Tensor]:
    """Logits of the same rows, pass after pass through the serving cache."""
    longest = max(len(ids) for ids in sequences)
    layout = plan_layout(
        model.config,
        max_num_seqs=len(sequences),
        max_batched_tokens=sum(len(ids) for ids in sequences),
        max_model_len=longest + 1,
        cache_bytes=1 << 28,
        entry_bytes=4,
    )
    cache, buffers = CacheManager(layout), CacheBuffers(layout, dtype=model.dtype, device=model.device)
    frequencies = {layer.ratio: layer_frequencies(model.config, layer.ratio) for layer in layout.layers}
    for number in range(len(sequences)):
        cache.open(number, longest)
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for step in schedule:
        for number, _, end in step:
            cache.grow(number, end)
        buffers.clear(cache.take_fresh())
        runs = [(place, start, sequences[number][start:end]) for place, (number, start, end) in enumerate(step)]
        rows = build_rows(runs, model.min_rows)
        tables = [cache.tables[number] for number, _, _ in step]
        context = ServingContext(model.config, rows, tables, buffers, frequencies)
        logits = model.logits(model.hidden(model(rows, context)))[: rows.num_rows]
        for (number, start, end), piece in zip(step, logits.split([b - a for _, a, b in step]), strict=True):
            assert sum(len(part) for part in parts[number]) == start, "rows of a sequence out of order"
            parts[number].append(piece)
            cache.slide(number, end)
    return [torch.cat(part) for part in parts]


def mixture(rng: random.Random, sequences: Sequences, sizes: Sequence[int]) -> list[Pass]:
    """Every sequence cut at random, every pass a random choice of sequences in random order."""
    places = [0] * len(sequences)
    schedule: list[Pass] = []
    while True:
        waiting = [i for i, ids in enumerate(sequences) if places[i] < len(ids)]
        if not waiting:
            return schedule
        step = []
        for number in rng.sample(waiting, rng.randint(1, len(waiting))):
            start = places[number]
            places[number] = min(len(sequences[number]), start + rng.choice(sizes))
            step.append((number, start, places[number]))
        schedule.append(step)


def differing_rows(left: Sequence[Tensor], right: Sequence[Tensor]) -> int:
    """Rows of which any bit differs."""
    return sum(int((a != b).any(-1).sum()) for a, b in zip(left, right, strict=True))
