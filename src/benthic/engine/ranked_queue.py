"""Sequences in the order in which they are served.

Rank is the time of arrival, moved forward by `aging_s` seconds for each point of priority. So priorities age by
themselves: of two requests, the one of higher priority goes first unless the other came that much earlier, and the
order of two never changes while they wait. Nothing is ever sorted again, and nobody can be passed over by requests
that arrive more than (highest - own priority) * aging_s after it.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from benthic.engine.sequence import Sequence

_rank = attrgetter("rank")


class RankedQueue:
    """Sequences by rank, first one first; each knows its rank, which does not change while it is here."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        """Puts it where its rank belongs."""
        insort(self._sequences, sequence, key=_rank)

    def remove(self, sequence: Sequence) -> None:
        """Takes it out; it must be here."""
        place = bisect_left(self._sequences, sequence.rank, key=_rank)
        assert self._sequences[place] is sequence, sequence.request.request_id
        del self._sequences[place]

    def first(self, count: int) -> list[Sequence]:
        """The first few, at most `count`."""
        return self._sequences[:count]

    @property
    def last(self) -> Sequence:
        """The one that gives way to all others; there must be one."""
        return self._sequences[-1]


def rank(sequence: Sequence, aging_s: float) -> tuple[float, int]:
    """Its place among all others, smaller first; arrival order decides between equals."""
    return sequence.arrived_s - sequence.request.priority * aging_s, sequence.number
