"""Sizes that passes are captured for: a pass takes the least one that holds it."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benthic.engine.config import EngineConfig

FIRST_CONTEXT, CONTEXT_STEP = 4096, 4
"""Longest context of the first size, and how many times longer that of the next is."""

FIRST_ROWS = (1, 2, 4, 8, 16, 24, 32, 48)
"""Rows of the first sizes; then every power of two and its half more. Dummies take part in products, so that finer
steps would save little, and in attention, so that coarser ones would cost much."""


@dataclass(frozen=True, slots=True)
class RowBuckets:
    """`rows` and `contexts`, ascending: passes of up to so many rows, at positions below so many tokens."""

    rows: tuple[int, ...]
    contexts: tuple[int, ...]

    @classmethod
    def of(cls, max_rows: int, max_len: int, rows: Sequence[int] | None = None) -> "RowBuckets":
        """For passes of up to `max_rows` rows, or the `rows` given, of sequences of up to `max_len` tokens."""
        contexts, length = [], FIRST_CONTEXT
        while length < max_len:
            contexts.append(length)
            length *= CONTEXT_STEP
        return cls(tuple(sorted(set(rows))) if rows else _default_rows(max_rows), (*contexts, max_len))

    def find(self, num_rows: int, length: int) -> tuple[int, int] | None:
        """The bucket of a pass of so many rows whose last position is `length` - 1; None where there is none."""
        place, reach = bisect_left(self.rows, num_rows), bisect_left(self.contexts, length)
        if place == len(self.rows) or reach == len(self.contexts):
            return None
        return self.rows[place], self.contexts[reach]

    def all(self) -> Iterator[tuple[int, int]]:
        """Every bucket, the largest first: what it takes is enough for the others."""
        for rows in reversed(self.rows):
            for length in reversed(self.contexts):
                yield rows, length


def row_buckets(config: EngineConfig, max_len: int) -> RowBuckets:
    """Sizes of the passes that are captured."""
    most = min(config.max_batched_tokens, config.max_num_seqs * (1 + config.max_draft_len))
    return RowBuckets.of(most, max_len, config.graph_rows)


def _default_rows(max_rows: int) -> tuple[int, ...]:
    found, size = list(FIRST_ROWS), 64
    while found[-1] < max_rows:
        found += [size, size + size // 2]
        size *= 2
    return (*(rows for rows in found if rows < max_rows), max_rows)
