"""A row of a pass that a token is drawn from."""

from typing import NamedTuple

from benthic.engine.sequence import Sequence


class SampledRow(NamedTuple):
    """One row of logits and the token that is to be drawn from it.

    `position` is the one that the token will have: of the tokens before it, the sequence holds the first ones and
    `drafted` the rest. Only a row whose rules need no history may be ahead of both (a token is still in flight).
    """

    sequence: Sequence
    position: int
    drafted: tuple[int, ...] = ()

    @property
    def num_generated(self) -> int:
        """Tokens generated before this one."""
        return self.position - self.sequence.prompt_len

    def generated(self) -> list[int]:
        """The tokens that were generated before this one."""
        sequence = self.sequence
        found = [*sequence.tokens[sequence.prompt_len :], *self.drafted]
        assert len(found) == self.num_generated, (len(found), self.num_generated)
        return found
