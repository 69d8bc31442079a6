"""What a pass left on the device, and how it becomes a `StepResult` on the host."""

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from benthic.engine.extras import PendingExtras
from benthic.engine.plan import SampledToken, StepPlan, StepResult
from benthic.engine.request import TokenLogprobs
from benthic.engine.row_drafts import PendingDrafts
from benthic.engine.sampler import PendingSamples
from benthic.engine.scoring import PendingLogprobs
from benthic.engine.speculate import count_accepted, tokens_that_count


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Log-probabilities of the prompt tokens after the rows of chunk `place`."""

    place: int
    scores: PendingLogprobs


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pass whose results are being copied to the host.

    `drafts`: for the next pass, of each chunk that samples. `started_s`: when it began, by `time.perf_counter`;
    `seconds`: what it took, where that is known before its results are waited for. `is_replayed`: see `StepResult`.
    """

    plan: StepPlan
    samples: PendingSamples | None
    scores: Seq[PromptScores]
    extras: PendingExtras | None
    drafts: Seq[Seq[int]] | PendingDrafts
    started_s: float
    seconds: float | None
    is_replayed: bool = False

    def collect(self) -> StepResult:
        """Waits for the copies."""
        sampled = self._runs()
        return StepResult(
            sampled=sampled,
            prompt_logprobs=self._prompt_logprobs(),
            extras=() if self.extras is None else self.extras.result(),
            drafts=self._drafts(),
            seconds=time.perf_counter() - self.started_s if self.seconds is None else self.seconds,
            is_replayed=self.is_replayed,
        )

    def _drafts(self) -> tuple[tuple[int, ...], ...]:
        if isinstance(self.drafts, PendingDrafts):
            return self.drafts.result()
        return tuple(tuple(own) for own in self.drafts)

    def _runs(self) -> tuple[tuple[SampledToken, ...], ...]:
        """The tokens that count, of each chunk that samples."""
        if self.samples is None:
            return ()
        tokens = self.samples.result()
        drafts = [chunk.drafts for chunk in self.plan.sampling]
        if not any(drafts):
            return tuple((token,) for token in tokens)
        accepted = count_accepted([token.token_id for token in tokens], drafts)
        return tokens_that_count(tokens, map(len, drafts), accepted)

    def _prompt_logprobs(self) -> tuple[tuple[TokenLogprobs, ...], ...]:
        if not self.scores:
            return ()
        found: list[tuple[TokenLogprobs, ...]] = [()] * len(self.plan.chunks)
        for entry in self.scores:
            found[entry.place] = tuple(entry.scores.result())
        return tuple(found)
