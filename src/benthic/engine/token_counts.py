"""Which tokens a sequence holds, and how often each was generated: what penalties look back on."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class CountedTokens(NamedTuple):
    """Distinct token ids, int64 [n], with how often each was generated, int64 [n]; 0: it is in the prompt alone."""

    ids: NDArray[np.int64]
    counts: NDArray[np.int64]


class TokenCounts:
    """Counts of one sequence, brought up to date as it grows: each token is looked at once.

    Args:
        prompt: ids that are known from the start and count as generated 0 times.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        known = np.unique(np.asarray(prompt, dtype=np.int64))
        self._place = {token: place for place, token in enumerate(known.tolist())}
        self._num_generated = 0
        self._ids = known
        self._counts = np.zeros(len(known), np.int64)

    def at(self, tokens: Sequence[int], prompt_len: int, drafted: Sequence[int]) -> CountedTokens:
        """The counts after `tokens`, of which the prompt is no generated part, and `drafted`, which may be undone.

        Earlier calls saw a beginning of the same tokens. The arrays are valid until the next call.
        """
        self._add(tokens[prompt_len + self._num_generated :])
        counted = self._counted()
        return self._with(counted, drafted) if drafted else counted

    def _with(self, counted: CountedTokens, drafted: Sequence[int]) -> CountedTokens:
        extra, times = np.unique(np.asarray(drafted, dtype=np.int64), return_counts=True)
        places = np.array([self._place.get(token, -1) for token in extra.tolist()], np.int64)
        is_new = places < 0
        counts = counted.counts.copy()
        counts[places[~is_new]] += times[~is_new]
        return CountedTokens(np.concatenate([counted.ids, extra[is_new]]), np.concatenate([counts, times[is_new]]))

    def _counted(self) -> CountedTokens:
        size = len(self._place)
        return CountedTokens(self._ids[:size], self._counts[:size])

    def _add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            place = self._place.setdefault(token, len(self._place))
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros(place + 16, np.int64)])
                self._counts = np.concatenate([self._counts, np.zeros(place + 16, np.int64)])
            self._ids[place] = token
            self._counts[place] += 1
        self._num_generated += len(tokens)
