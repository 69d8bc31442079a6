"""What an answer must spell: the record that comes with a request, and what the engine asks of whoever reads it.

The engine knows no text. A grammar is compiled outside of it, into bytes; inside of it a `MaskSource` turns these into
a `TokenMask`, one sequence's place in the grammar, which says what tokens may come next. How the engine makes use of
it: `constraint.py`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int32]
    """A bit a token, int32 [ceil(vocabulary / 32)]: token t may come next if bit t % 32 of word t // 32 is set."""
else:  # a command line reads these records without loading numpy
    Words = Any


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the tokens of one answer must spell, as compiled outside of the engine."""

    key: str
    """Equal keys, equal grammars: a digest of vocabulary, kind and source."""
    compiled: bytes
    """What the engine's `MaskSource` understands."""
    starts_after: int | None
    """The token (end of reasoning) after which it holds; None: from the first generated token on."""
    prefix: str = ""
    """Text at the prompt's end that counts as spelled already."""


class TokenMask(Protocol):
    """One sequence's place in a grammar. Belongs to one thread at a time."""

    def fill(self, words: Words) -> bool:
        """Writes which tokens may come next; False: all may, and `words` is left as it was.

        The model's end token may where the grammar is complete. Not called once that token was accepted.
        """
        ...

    def accept(self, token_id: int) -> bool:
        """Moves on by a token; False, and nothing has changed, where the grammar has no such token here."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Takes the last accepted tokens back, the end token among them; any number of those accepted."""
        ...

    def fork(self) -> "TokenMask":
        """Another one at the same place."""
        ...

    @property
    def is_ended(self) -> bool:
        """Only the end token may follow, or it has followed."""
        ...


class MaskSource(Protocol):
    """Reads compiled grammars; lives where the engine lives."""

    def start(self, grammar: Grammar) -> TokenMask:
        """The beginning of a grammar, after its prefix.

        Raises:
            RequestError: `compiled` is nothing that this source understands, or the grammar refuses the prefix.
        """
        ...


class MaskFactory(Protocol):
    """Makes the source, in the engine's process. It travels there, so it can be pickled: a function of a module, or a
    record that can be called."""

    def __call__(self, folder: str, vocab_size: int) -> MaskSource:
        """A source.

        Args:
            folder: of the checkpoint, with its tokenizer.
            vocab_size: of the model: tokens that `fill` has bits for.
        """
        ...
