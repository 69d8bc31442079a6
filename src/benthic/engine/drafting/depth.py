"""How many drafts to verify: as many as make tokens come fastest, judged by measured step times and acceptance.

Two things are learnt. The time of a pass over r rows that drafts c steps ahead: measured for every (r, c) that occurs
often enough, else read off the fit  base + row * r + chain * c  through what was measured. And how often draft k holds
where those before it did: for each k apart, over all requests and, weighed against that, of each request. The depth of
most tokens a second is taken, and of it each request uses the drafts that are worth their rows.

The first passes go through a few depths, so that all of this rests on measurements; later one pass in PROBE_EVERY
looks at a neighbour of the best depth. None of this can change a token, only when it comes.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

CELL_WEIGHT = 16
"""Passes of one kind that count at most; later ones replace the earlier."""
TRUSTED_PASSES = 2
"""Passes of one kind from which on their own mean is believed and not the fit."""
PRIOR_WEIGHT = 0.02
"""Of the prior of the fit against one pass."""
SWEEP = (2, 1)
"""Depths of the first passes, as far as they are allowed: short answers leave no time for more."""
SWEEP_PASSES = 3
"""Passes of each: the first still verifies drafts of the depth before, and two are believed."""
PROBE_EVERY = 64
"""One pass in so many drafts one token more or less, to see whether that would pay by now."""
FIRST_RATE = 0.6
"""Chance that a draft holds, before any was tried."""
POOL_MEMORY, REQUEST_MEMORY = 0.995, 0.9
"""Weight of a trial against the next one at the same place: over all requests, and of one."""
POOL_PRIOR, REQUEST_PRIOR = 2.0, 6.0
"""Trials that the prior counts as."""

Floats = NDArray[np.float64]


class StepTimes:
    """Seconds of a pass as a function of its rows and of the steps drafted ahead."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], tuple[float, float]] = {}
        """(rows, chain) -> (passes that count, mean seconds)."""
        self._moments = np.zeros((3, 3))
        self._sums = np.zeros(3)

    def observe(self, num_rows: int, chain_len: int, seconds: float) -> None:
        """Counts one pass of decoding sequences."""
        count, mean = self._cells.get((num_rows, chain_len), (0.0, seconds))
        features = np.array([1.0, num_rows, chain_len])
        self._add(features, -count, mean)
        if seconds < 0.5 * mean:  # what was there were outliers: something was compiled, or the machine was busy
            count = 0.0
        count = min(count + 1.0, CELL_WEIGHT)
        mean += (min(seconds, 2.0 * mean) - mean) / count
        self._cells[num_rows, chain_len] = (count, mean)
        self._add(features, count, mean)

    def predict(self, num_rows: int, chain_len: int) -> float:
        """Seconds of such a pass."""
        count, mean = self._cells.get((num_rows, chain_len), (0.0, 0.0))
        if count >= TRUSTED_PASSES:
            return mean
        base, row, chain = self.coefficients()
        return base + row * num_rows + chain * chain_len

    def coefficients(self) -> tuple[float, float, float]:
        """(base, row, chain) of the fit, none negative; before the first pass a guess in arbitrary units."""
        count = self._moments[0, 0]
        seconds, rows = (self._sums[0] / count, self._moments[0, 1] / count) if count >= 1.0 else (1.0, 1.0)
        # Little variety in the passes leaves the fit to the prior: rows are cheap beside a pass, drafting less so.
        prior = seconds * np.array([0.75, 0.15 / rows, 0.1])
        weights = PRIOR_WEIGHT * np.diag([1.0, rows * rows, 1.0])
        fitted = np.linalg.solve(self._moments + weights, self._sums + weights @ prior)
        base, row, chain = np.maximum(fitted, prior * 1e-3).tolist()
        return base, row, chain

    def _add(self, features: Floats, weight: float, mean: float) -> None:
        self._moments += weight * np.outer(features, features)
        self._sums += weight * mean * features


@dataclass(slots=True)
class Acceptance:
    """How often drafts held, by their place in the run. A trial is a draft whose predecessors held."""

    max_depth: int
    memory: float
    tried: Floats = field(init=False)
    held: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.tried, self.held = np.zeros(self.max_depth), np.zeros(self.max_depth)

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """Counts one verification. Places that were not tried forget nothing."""
        assert 0 <= num_accepted <= num_drafts <= self.max_depth, (num_accepted, num_drafts)
        tried = min(num_drafts, num_accepted + 1)
        self.tried[:tried] = self.memory * self.tried[:tried] + 1.0
        self.held[:tried] *= self.memory
        self.held[:num_accepted] += 1.0

    def rates(self, prior: Floats, weight: float) -> Floats:
        """Probability that a draft at each place holds, in (0, 1); `prior` counts as `weight` trials."""
        rates: Floats = np.clip((self.held + weight * prior) / (self.tried + weight), 0.01, 0.99)
        return rates


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
        self._all = Acceptance(max_depth, POOL_MEMORY)
        self._num_chosen = 0
        depths = sorted({min(depth, max_depth) for depth in SWEEP}, reverse=True)
        self._first_depths = [depth for depth in depths for _ in range(SWEEP_PASSES)]

    @property
    def is_sweeping(self) -> bool:
        """Whether the next pass is one of the first, which only measure."""
        return self._is_adaptive and self._num_chosen < len(self._first_depths)

    def observe(self, request_id: str, num_drafts: int, num_accepted: int) -> None:
        """Counts one verification of a request."""
        if num_drafts:
            own = self._requests.get(request_id)
            if own is None:
                own = self._requests[request_id] = Acceptance(self.max_depth, REQUEST_MEMORY)
            own.observe(num_drafts, num_accepted)
            self._all.observe(num_drafts, num_accepted)

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        self._requests.pop(request_id, None)

    def choose(self, request_ids: Seq[str]) -> list[int]:
        """Depths of the requests that get a token in the next pass."""
        if not self._is_adaptive or not self.max_depth or not request_ids:
            return [self.max_depth] * len(request_ids)
        first_depth = self._first_depths[self._num_chosen] if self.is_sweeping else None
        self._num_chosen += 1
        if first_depth is not None:
            return [first_depth] * len(request_ids)
        pool = self._pool_rates()
        known = self._requests
        rates = [known[name].rates(pool, REQUEST_PRIOR) if name in known else pool for name in request_ids]
        depths = self._fastest(np.array(rates))
        if self._num_chosen % PROBE_EVERY == 0:
            side = 1 if self._num_chosen // PROBE_EVERY % 2 or not depths.any() else -1
            depths = np.clip(depths + side, 0, self.max_depth)
        chosen: list[int] = depths.tolist()
        return chosen

    def _pool_rates(self) -> Floats:
        """Over all requests. A place that was hardly tried is taken to be like the one before it."""
        rates = np.empty(self.max_depth)
        prior = FIRST_RATE
        for place in range(self.max_depth):
            prior = (self._all.held[place] + POOL_PRIOR * prior) / (self._all.tried[place] + POOL_PRIOR)
            rates[place] = prior
        return rates

    def _fastest(self, rates: Floats) -> NDArray[np.int64]:
        """Depths [requests] by rates [requests, max_depth]."""
        count = len(rates)
        # The chance that draft k is reached and holds; 1 for the model's own token.
        chances = np.concatenate([np.ones((count, 1)), rates.cumprod(axis=1)], axis=1)
        tokens = chances.sum(0).cumsum()
        seconds = np.array(
            [
                self.times.predict(count * (depth + 1), depth if self._is_chained else 0)
                for depth in range(self.max_depth + 1)
            ]
        )
        best = int(np.argmax(tokens / seconds))
        if count == 1:
            return np.array([best])
        # At the best ratio a row is worth computing if it brings tokens faster than the whole pass does.
        _, row, _ = self.times.coefficients()
        worth = chances[:, 1 : best + 1] >= row * tokens[best] / seconds[best]
        return worth.sum(1)
