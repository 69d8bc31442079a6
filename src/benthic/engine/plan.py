"""The scheduler's decision for one pass, and what came out of it.

Made anew for every running request in every step, so chunks and tokens are tuples: they cost a third of a frozen
dataclass.
"""

from dataclasses import dataclass
from typing import NamedTuple

from benthic.engine.request import ErrorKind, RowExtras, TokenLogprobs
from benthic.engine.sequence import Sequence


class ScheduledChunk(NamedTuple):
    """Rows `start .. start + length - 1` of a sequence.

    A chunk that `samples` ends at the sequence's last token. With `drafts` its rows are the last known token and the
    drafts after it, so `length == 1 + len(drafts)`; token start + i + 1 is sampled from row i for as long as the rows
    before it proved right. If `is_relayed`, the chunk is one row whose token is what the pass in flight samples for
    the same request row: the host does not know it yet.
    """

    sequence: Sequence
    row: int
    """Request row in the cache."""
    start: int
    length: int
    samples: bool
    drafts: tuple[int, ...] = ()
    stored_len: int = 0
    """Blocks of entries that end at or before this position exist already and are neither computed nor written."""
    is_relayed: bool = False

    def token_ids(self) -> list[int]:
        """The tokens of the rows; of a relayed chunk they are not known."""
        assert not self.is_relayed, self.sequence.request.request_id
        if self.drafts:
            return [self.sequence.tokens[self.start], *self.drafts]
        return self.sequence.tokens[self.start : self.start + self.length]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One pass. Decodes and verifies come first; a sequence appears at most once.

    `step` counts the passes from 1; memory freed while the pass is in flight is fenced by it.
    """

    chunks: tuple[ScheduledChunk, ...]
    step: int = 0

    @property
    def num_rows(self) -> int:
        """Rows of the pass."""
        return sum(chunk.length for chunk in self.chunks)

    @property
    def sampling(self) -> tuple[ScheduledChunk, ...]:
        """The chunks that sample, in order."""
        return tuple(chunk for chunk in self.chunks if chunk.samples)


class SampledToken(NamedTuple):
    """A token that the model chose; `error` instead where its logits were not finite, or nothing was to be chosen."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    error: str | None = None
    error_kind: ErrorKind = "numbers"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came out of a pass.

    `sampled`: for each chunk with `samples`, in the plan's order, the tokens that were chosen one after another: one,
    and one more for each draft that was right, so 1 .. chunk.length of them; all but the last equal the drafts.
    `prompt_logprobs` and `extras`, if not empty, have one place for each chunk of the plan. Prompt log-probabilities
    are those of tokens start + 1 .. start + length, so far as these are tokens of the prompt.
    `drafts`, if not empty: what a drafter that sees passes guesses next, for each chunk with `samples`. `seconds`:
    what the pass took. `is_replayed`: it was captured before.
    """

    sampled: tuple[tuple[SampledToken, ...], ...]
    prompt_logprobs: tuple[tuple[TokenLogprobs, ...], ...] = ()
    extras: tuple[RowExtras | None, ...] = ()
    weight_version: int = 0
    drafts: tuple[tuple[int, ...], ...] = ()
    seconds: float = 0.0
    is_replayed: bool = False
