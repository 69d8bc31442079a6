"""How many drafts to verify: as many as make tokens come fastest, judged by measured step times and acceptance.

A pass over r rows that drafts c steps ahead takes about  base + row * r + chain * c  seconds; the three are fitted to
the latest passes. A request whose drafts hold with probability a yields 1 + a + ... + a^k tokens from k drafts. The
depth that maximises tokens per second is taken, and of it each request uses the drafts that are worth their rows.
None of this can change a token, only when it comes.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

FORGETTING = 0.98
"""Weight of a pass relative to the next one: about the latest fifty count."""
PRIOR_WEIGHT = 0.02
"""Of the prior against one pass."""
PROBE_EVERY = 64
"""Where drafting does not pay, one pass in so many drafts one token, to see whether it would by now."""


class StepTimes:
    """Seconds of a pass as a function of its rows and of the steps drafted ahead: ridge regression with forgetting."""

    def __init__(self) -> None:
        self._moments = np.zeros((3, 3))
        self._sums = np.zeros(3)
        self._seconds = self._rows = 0.0

    def observe(self, num_rows: int, chain_len: int, seconds: float) -> None:
        """Counts one pass of decoding sequences."""
        features = np.array([1.0, num_rows, chain_len])
        self._moments = FORGETTING * self._moments + np.outer(features, features)
        self._sums = FORGETTING * self._sums + features * seconds
        self._seconds = FORGETTING * self._seconds + seconds
        self._rows = FORGETTING * self._rows + num_rows

    def coefficients(self) -> tuple[float, float, float]:
        """(base, row, chain), none negative; before the first pass a guess in arbitrary units."""
        count = self._moments[0, 0]
        seconds, rows = (self._seconds / count, self._rows / count) if count else (1.0, 1.0)
        # Little variety in the passes leaves the fit to the prior: rows are cheap beside a pass, drafting less so.
        prior = seconds * np.array([0.75, 0.15 / rows, 0.1])
        weights = PRIOR_WEIGHT * np.diag([1.0, rows * rows, 1.0])
        fitted = np.linalg.solve(self._moments + weights, self._sums + weights @ prior)
        base, row, chain = np.maximum(fitted, prior * 1e-3).tolist()
        return base, row, chain


@dataclass(slots=True)
class Acceptance:
    """How often a request's drafts held. A trial is a draft whose predecessors held."""

    tried: float = 0.0
    held: float = 0.0

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """Counts one verification."""
        assert 0 <= num_accepted <= num_drafts, (num_accepted, num_drafts)
        self.tried = 0.95 * self.tried + num_accepted + (num_accepted < num_drafts)
        self.held = 0.95 * self.held + num_accepted

    def rate(self, prior: float) -> float:
        """Probability that a draft holds, in (0, 1)."""
        return min(0.99, max(0.01, (self.held + 4.0 * prior) / (self.tried + 4.0)))


class DepthPolicy:
    """Chooses the depth of each request for the next pass.

    Args:
        max_depth: drafts of a request at most.
        is_adaptive: False always takes `max_depth`.
        is_chained: drafts are computed one after the other on the device, so that each costs a step.
    """

    def __init__(self, max_depth: int, *, is_adaptive: bool = True, is_chained: bool = True) -> None:
        self.max_depth = max_depth
        self._is_adaptive, self._is_chained = is_adaptive, is_chained
        self.times = StepTimes()
        self._requests: dict[str, Acceptance] = {}
        self._all = Acceptance()
        self._num_chosen = 0

    def observe(self, request_id: str, num_drafts: int, num_accepted: int) -> None:
        """Counts one verification of a request."""
        if num_drafts:
            self._requests.setdefault(request_id, Acceptance()).observe(num_drafts, num_accepted)
            self._all.observe(num_drafts, num_accepted)

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)

    def choose(self, request_ids: Seq[str]) -> list[int]:
        """Depths of the requests that get a token in the next pass."""
        if not self._is_adaptive or not self.max_depth:
            return [self.max_depth] * len(request_ids)
        self._num_chosen += 1
        prior = self._all.rate(0.6)
        known = self._requests
        rates = np.array([known[name].rate(prior) if name in known else prior for name in request_ids])
        depths = self._fastest(rates)
        if self._num_chosen % PROBE_EVERY == 0:
            depths = np.maximum(depths, 1)
        chosen: list[int] = depths.tolist()
        return chosen

    def _fastest(
        self, rates: np.ndarray[tuple[int], np.dtype[np.float64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        base, row, chain = self.times.coefficients()
        depths = np.arange(self.max_depth + 1)
        powers = rates[:, None] ** depths  # the chance that draft k is reached and holds; 1 for the token itself
        tokens = powers.sum(0).cumsum()
        seconds = base + row * len(rates) * (depths + 1) + (chain * depths if self._is_chained else 0.0)
        best = int(np.argmax(tokens / seconds))
        # At the best ratio a row is worth computing if it brings tokens faster than the whole pass does.
        worth = powers[:, 1 : best + 1] >= row * tokens[best] / seconds[best]
        return worth.sum(1)
