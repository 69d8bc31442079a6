"""The scheduler's decision for one pass: which tokens of which sequences, and who gets a next token."""

from dataclasses import dataclass

from benthic.engine.request import Sequence, TokenLogprobs


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """Tokens `start .. start + length - 1` of a sequence; `samples` where they end with its last known token."""

    sequence: Sequence
    start: int
    length: int
    samples: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One pass. Decoding chunks come first; a sequence appears at most once."""

    chunks: tuple[ScheduledChunk, ...]

    @property
    def num_rows(self) -> int:
        """Rows of the pass."""
        return sum(chunk.length for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class SampledToken:
    """The next token of a sequence; `error` instead where its logits were not finite."""

    token_id: int
    logprobs: TokenLogprobs | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came out of a pass: one sampled token for each chunk with `samples`, in the plan's order."""

    sampled: tuple[SampledToken, ...]
