"""Passes over several sequences through the paged cache, in any cutting and mixture, and packed as in training."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from benthic.cache.geometry import CacheCapacity, geometry
from benthic.cache.manager import CacheManager
from benthic.cache.paged_context import PagedContext
from benthic.cache.pools import CachePools
from benthic.cache.retention import retention
from benthic.cache.row import Row
from benthic.cache.storage import Storage
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
    rows = build_rows([(i, 0, ids) for i, ids in enumerate(sequences)], model.min_rows, model.device)
    logits = model.logits(model.hidden(model(rows, PackedContext(model.config, rows))))
    return list(logits[: rows.num_rows].split([len(ids) for ids in sequences]))


class PagedPasses:
    """A cache around a model, run pass by pass without an engine."""

    def __init__(
        self,
        model: Transformer,
        *,
        num_rows: int,
        max_len: int,
        page_size: int = 128,
        max_draft_len: int = 0,
        policy: str = "boundaries",
        storage: Storage = "wide",
        in_place: bool = False,
    ) -> None:
        self.model, self.in_place = model, in_place
        shape = geometry(model.config, page_size=page_size, max_draft_len=max_draft_len)
        ids = (num_rows + 2) * (shape.num_pages(max_len) + 1)
        capacity = CacheCapacity(
            num_pages=ids, num_windows=ids if shape.window else 0, num_rows=num_rows, max_len=max_len
        )
        self.cache = CacheManager(shape, capacity, retention(policy, page_size=page_size, interval=64 * page_size))
        self.pools = CachePools(
            shape,
            capacity,
            dtype=model.dtype,
            device=model.device,
            storage=storage,
            numerics=model.numerics.policy,
        )
        self._frequencies = {
            ratio: layer_frequencies(model.config, ratio).to(model.device) for ratio in shape.layer_ratios
        }

    def open(self, tokens: Sequence[int], *, use_cache: bool = True) -> Row:
        """A row for a sequence; `row.start_len` is the first position to run."""
        row = self.cache.open(tokens, len(tokens), ("passes",), use_cache=use_cache)
        assert row is not None, "the cache is too small for this test"
        return row

    @torch.no_grad()
    def run(self, runs: Sequence[tuple[Row, Sequence[int]]]) -> list[Tensor]:
        """Logits of one pass: each row goes on with these tokens. Nothing is committed."""
        for row, ids in runs:
            self.cache.grow(row, row.committed_len + len(ids))
        self.pools.apply(self.cache.take_work())
        rows = build_rows(
            [(row.index, row.committed_len, ids) for row, ids in runs],
            self.model.min_rows,
            self.model.device,
            stored_lens=[row.stored_len for row, _ in runs],
        )
        context = PagedContext(
            self.model.config, rows, self.pools, self.cache.tables, self._frequencies, in_place=self.in_place
        )
        logits = self.model.logits(self.model.hidden(self.model(rows, context)))[: rows.num_rows]
        return list(logits.split([len(ids) for _, ids in runs]))

    def read(self, row: Row, tokens: Sequence[int], chunk: int = 1 << 30) -> Tensor:
        """Runs and commits the rest of a sequence in chunks; the logits from `row.committed_len` on."""
        parts = []
        while (start := row.committed_len) < len(tokens):
            end = min(start + chunk, len(tokens))
            parts += self.run([(row, tokens[start:end])])
            self.cache.commit(row, end, tokens)
        return torch.cat(parts)


def served(model: Transformer, sequences: Sequences, schedule: Iterable[Pass], **settings: Any) -> list[Tensor]:
    """Logits of the same rows as `packed` gives, pass after pass through the cache."""
    longest = max(len(ids) for ids in sequences)
    passes = PagedPasses(model, num_rows=len(sequences), max_len=longest + 1, **settings)
    rows = [passes.open(ids, use_cache=False) for ids in sequences]
    parts: list[list[Tensor]] = [[] for _ in sequences]
    for step in schedule:
        assert all(rows[number].committed_len == start for number, start, _ in step), "rows of a sequence out of order"
        logits = passes.run([(rows[number], sequences[number][start:end]) for number, start, end in step])
        for (number, _, end), piece in zip(step, logits, strict=True):
            parts[number].append(piece)
            passes.cache.commit(rows[number], end, sequences[number])
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
