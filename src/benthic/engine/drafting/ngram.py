"""Drafts by looking the latest tokens up in the sequence itself (prompt lookup).

Text repeats itself: quotations, code, tables. The longest earlier occurrence of the sequence's end says what came next
then. Occurrences are found as LZ77 finds them: a table from the last two tokens to their latest place, and for every
place the one before it with the same two tokens. One table write a token, however long the sequence.
"""

from collections.abc import Sequence as Seq

from benthic.engine.drafting.protocol import ComputedPass

MIN_MATCH = 2
MAX_MATCH = 32
"""Tokens compared at most; a longer match would hardly be better."""
MAX_CANDIDATES = 8
"""Earlier occurrences looked at, latest first."""


class LookupIndex:
    """Where each pair of neighbouring tokens of one sequence stood. Grows with the sequence, never shrinks."""

    __slots__ = ("_before", "_latest")

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], int] = {}
        self._before: list[int] = [-1]

    def extend(self, tokens: Seq[int]) -> None:
        """Enters the pairs that end before the last token: the last pair is the one looked up."""
        latest, before = self._latest, self._before
        for end in range(len(before), len(tokens) - 1):
            pair = (tokens[end - 1], tokens[end])
            before.append(latest.get(pair, -1))
            latest[pair] = end

    def lookup(self, tokens: Seq[int], count: int) -> tuple[int, ...]:
        """`count` tokens that followed the longest earlier occurrence of the end of `tokens`; () without one.

        Of equally long occurrences the latest counts. A continuation that reaches the end goes on with itself.
        """
        if len(tokens) <= MIN_MATCH or count <= 0:
            return ()
        place = self._latest.get((tokens[-2], tokens[-1]), -1)
        best, best_len = -1, 0
        for _ in range(MAX_CANDIDATES):
            if place < 0 or best_len == MAX_MATCH:
                break
            match_len = _match_len(tokens, place)
            if match_len > best_len:
                best, best_len = place, match_len
            place = self._before[place]
        return _continuation(tokens, best + 1, count) if best >= 0 else ()


class NgramDrafter:
    """A `Drafter` that reads the sequences' own tokens; nothing runs on the device."""

    sees_passes = False

    def __init__(self) -> None:
        self._indices: dict[str, LookupIndex] = {}

    def observe(self, computed: ComputedPass, depths: Seq[int]) -> list[list[int]]:
        """Not called."""
        return []

    def propose(self, request_id: str, tokens: Seq[int], depth: int, observed: Seq[int]) -> tuple[int, ...]:
        """What followed the sequence's end before."""
        index = self._indices.setdefault(request_id, LookupIndex())
        index.extend(tokens)
        return index.lookup(tokens, depth)

    def forget(self, request_id: str) -> None:
        """Drops a finished request's index."""
        self._indices.pop(request_id, None)


def _match_len(tokens: Seq[int], place: int) -> int:
    """Tokens up to `place` that equal as many at the end; the last two are known to."""
    last = len(tokens) - 1
    length = MIN_MATCH
    while length < MAX_MATCH and place - length >= 0 and tokens[place - length] == tokens[last - length]:
        length += 1
    return length


def _continuation(tokens: Seq[int], start: int, count: int) -> tuple[int, ...]:
    found = list(tokens[start : start + count])
    while len(found) < count:
        found.append(found[start + len(found) - len(tokens)])
    return tuple(found)
