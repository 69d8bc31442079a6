"""What the engine asks of a drafter: tokens that may come next, cheap to guess and checked by the model itself.

A drafter can only make the engine faster or slower. At every position the target model's own token is drawn, with
the random number of (seed, position), and a draft counts only where it equals that token; so tokens are the same, to
the bit, with any drafter, at any temperature.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from benthic.models.context import AttentionContext, Rows


class SequenceEnds(Protocol):
    """The S sequences that got tokens in a pass, at their last accepted rows.

    `last_rows` int64 [S], on the device: their rows in the pass. `last_positions`, `newest_ids`: on the host, the
    positions of these rows and the tokens drawn from them, which are the newest ones.
    """

    last_rows: Tensor
    last_positions: tuple[int, ...]
    newest_ids: tuple[int, ...]

    def draw(self, logits: Tensor, which: Seq[int], drafts: Seq[Seq[int]]) -> list[int]:
        """A token for each of the sequences `which` [S'] from logits [S', V], each as the sequence itself would draw
        it after its newest token and its `drafts`."""
        ...

    def single_rows(self, which: Seq[int], positions: Seq[int], token_ids: Seq[int]) -> tuple[Rows, AttentionContext]:
        """A pass of one row a sequence."""
        ...


@dataclass(frozen=True, slots=True)
class ComputedPass:
    """What a pass has computed.

    `streams` [R, n, D]: residual streams of the pass's rows, rejected drafts included.
    `next_ids` int64 [R]: for every computed row the token after it; anything for dummies and rejected drafts.
    `ends`: where drafts are wanted, the sequences to draft for; else None.
    """

    rows: Rows
    context: AttentionContext
    streams: Tensor
    next_ids: Tensor
    ends: SequenceEnds | None


class Drafter(Protocol):
    """Guesses the tokens that follow."""

    @property
    def sees_passes(self) -> bool:
        """Whether it works on the device: `observe` is called with every pass. Its layers are the model's MTP blocks,
        whose entries the cache keeps behind those of the main layers."""
        ...

    def observe(self, computed: ComputedPass, depths: Seq[int]) -> list[list[int]]:
        """Called in every pass, on the device's thread, before the engine knows its results.

        Args:
            depths: drafts wanted for each of the S sequences.

        Returns:
            Drafts of each sequence, as many as wanted or fewer.
        """
        ...

    def propose(self, request_id: str, tokens: Seq[int], depth: int, observed: Seq[int]) -> tuple[int, ...]:
        """At most `depth` tokens that may follow `tokens`, given what `observe` returned for the request."""
        ...

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        ...
