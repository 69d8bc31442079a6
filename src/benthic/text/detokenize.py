"""Ids to text, piece by piece, and stop strings on the way.

The one law: the pieces, joined, equal `Tokenizer.decode` of all ids at once, for every way of cutting the ids. So

- bytes that may still become a character are held until it is whole; what is left at the end, or turns out invalid, is
  U+FFFD once for each maximal invalid part (the Unicode rule that `bytes.decode(errors="replace")` follows);
- text that may still become a stop string is held, and nothing more. Of several stop strings the one completed first
  wins, of those completed by the same character the one that began first. Nothing of it is shown unless that is asked
  for, nor what follows.

Where a reply begins with reasoning, stop strings are looked for in the text after the token that ends the reasoning.
"""

import codecs
from collections.abc import Iterable, Sequence

from benthic.errors import RequestError
from benthic.text.tokenizer import Tokenizer


class Detokenizer:
    """Incremental text of one sequence.

    Args:
        tokenizer: whose ids these are.
        stop: stop strings, none of them empty.
        skip: ids that contribute no text, such as EOS.
        include_stop: shows the stop string that ended the text.
        after_id: stop strings count only in the text after the first of this id; None: in the whole text.

    Raises:
        RequestError: an empty stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        skip: Iterable[int] = (),
        *,
        include_stop: bool = False,
        after_id: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = frozenset(skip)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._stops = StopStrings(stop, include=include_stop)
        self._awaited_id = after_id
        self.num_tokens = 0
        """Ids consumed, the one that completed a stop string included."""

    @property
    def stopped(self) -> str | None:
        """The stop string that was matched, if any; then all further ids are ignored."""
        return self._stops.matched

    def push(self, ids: Iterable[int]) -> str:
        """Take ids; return the text that is now certain. After a stop string, test `stopped` and end the sequence."""
        pieces = []
        for token_id in ids:
            if self.stopped is not None:
                break
            self.num_tokens += 1
            data = b"" if token_id in self._skip else self._tokenizer.token_bytes(token_id)
            text = self._decoder.decode(data)
            if self._awaited_id is None:
                pieces.append(self._stops.push(text))
                continue
            pieces.append(text)
            if token_id == self._awaited_id:
                # Half a character before the token belongs to the reasoning.
                pieces.append(self._decoder.decode(b"", final=True))
                self._awaited_id = None
        return "".join(pieces)

    def flush(self) -> str:
        """End of the sequence: return what was held. An unfinished character becomes U+FFFD."""
        rest = self._decoder.decode(b"", final=True)
        return rest if self._awaited_id is not None else self._stops.push(rest) + self._stops.flush()


class StopStrings:
    """Watches a text for stop strings and lets through what can no longer belong to one.

    With `include` the string that matched is shown too; what may become one is held all the same.
    """

    def __init__(self, stop: Sequence[str], *, include: bool = False) -> None:
        if any(not string for string in stop):
            raise RequestError(f"a stop string is empty in {list(stop)!r}; each must have a character", param="stop")
        self._stop = tuple(stop)
        self._include = include
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take text, return what is certain to come before any stop string. Empty once `matched` is set."""
        if self.matched is not None:
            return ""
        if not self._stop:
            return text
        self._held += text
        match = self._first_match()
        if match is None:
            return self._release(self._num_undecided())
        start, self.matched = match
        end = start + len(self.matched) if self._include else start
        shown, self._held = self._held[:end], ""
        return shown

    def flush(self) -> str:
        """End of the text: what was held is no stop string after all."""
        return self._release(0)

    def _release(self, num_kept: int) -> str:
        cut = len(self._held) - num_kept
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def _first_match(self) -> tuple[int, str] | None:
        found = [(self._held.find(string), string) for string in self._stop]
        matches = [(start + len(string), start, string) for start, string in found if start >= 0]
        return min(matches)[1:] if matches else None

    def _num_undecided(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = min(len(self._held), max(map(len, self._stop)) - 1)
        ends = (self._held[len(self._held) - length :] for length in range(longest, 0, -1))
        return next((len(end) for end in ends if any(string.startswith(end) for string in self._stop)), 0)
