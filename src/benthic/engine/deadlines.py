"""Which requests are out of time. Knows no clock; the time is handed in."""

import heapq
import math

from benthic.engine.sequence import Sequence


class Deadlines:
    """Sequences by deadline. Those that ended are forgotten at once; a number stays behind until its time has come."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: dict[int, Sequence] = {}

    def add(self, sequence: Sequence) -> None:
        """Watches a sequence, if it has a deadline."""
        if sequence.deadline_s < math.inf:
            self._live[sequence.number] = sequence
            heapq.heappush(self._heap, (sequence.deadline_s, sequence.number))

    def forget(self, sequence: Sequence) -> None:
        """It has ended."""
        self._live.pop(sequence.number, None)

    def next_s(self) -> float:
        """The earliest deadline of a live sequence; infinite where there is none."""
        while self._heap and self._heap[0][1] not in self._live:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def passed(self, now_s: float) -> list[Sequence]:
        """Live sequences whose deadline is now or earlier, earliest first; they are watched no more."""
        late = []
        while self._heap and self._heap[0][0] <= now_s:
            _, number = heapq.heappop(self._heap)
            sequence = self._live.pop(number, None)
            if sequence is not None:
                late.append(sequence)
        return late
