"""A drafter that knows the future, and errs where it is told to."""

import random
import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq

from benthic.engine.drafting import ComputedPass


class OracleDrafter:
    """Proposes the tokens that plain decoding gave, each wrong with probability `error_rate`.

    Args:
        answers: whole sequences, prompt included, by request id.
        delay_s: passes end up to so many seconds late, at random.
    """

    def __init__(
        self,
        answers: Mapping[str, Seq[int]],
        *,
        error_rate: float = 0.0,
        vocab_size: int = 512,
        seed: int = 0,
        delay_s: float = 0.0,
    ) -> None:
        self._answers, self._error_rate, self._vocab_size, self._delay_s = answers, error_rate, vocab_size, delay_s
        self._rng = random.Random(seed)
        self._delays = random.Random(seed)

    @property
    def sees_passes(self) -> bool:
        return self._delay_s > 0

    def observe(self, computed: ComputedPass, depths: Seq[int]) -> list[list[int]]:
        time.sleep(self._delays.uniform(0, self._delay_s))
        return [[] for _ in depths]

    def propose(self, request_id: str, tokens: Seq[int], depth: int, observed: Seq[int]) -> tuple[int, ...]:
        known = self._answers.get(request_id, ())
        right = known[len(tokens) : len(tokens) + depth]
        return tuple(self._maybe_wrong(token) for token in right)

    def forget(self, request_id: str) -> None:
        pass

    def _maybe_wrong(self, token: int) -> int:
        is_wrong = self._rng.random() < self._error_rate
        return (token + self._rng.randrange(1, self._vocab_size)) % self._vocab_size if is_wrong else token
