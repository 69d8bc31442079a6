"""The engine's view of a grammar: which tokens may come next, told by xgrammar. Fits `engine.grammar.MaskSource`.

Lives in the engine's process, which finds it by `grammar_masks`. The library is loaded with the first grammar (half a
second, once), so that an engine is not slower to start for it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benthic.text.grammar_compiler import GrammarCompiler
from benthic.text.grammar_vocabulary import GrammarVocabulary

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Words = NDArray[np.int32]
else:
    Words = Any


class Started(Protocol):
    """What a mask needs of a grammar."""

    @property
    def compiled(self) -> bytes:
        """Payload of a `GrammarSpec`."""
        ...

    @property
    def prefix(self) -> str:
        """Text that counts as written."""
        ...


def grammar_masks(folder: str, vocab_size: int) -> "GrammarMasks":
    """The source for a checkpoint.

    Args:
        folder: of the checkpoint, with tokenizer.json.
        vocab_size: of the model.
    """
    return GrammarMasks(GrammarVocabulary(Path(folder) / "tokenizer.json", vocab_size))


class GrammarMasks:
    """Makes masks for one vocabulary. `start` is for one thread at a time."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._compiler = GrammarCompiler(vocabulary)

    def start(self, grammar: Started) -> "GrammarMask":
        """The beginning of a grammar, after its prefix.

        Raises:
            BadSchema: the source is no grammar, or it refuses the prefix.
        """
        compiler = self._compiler
        matcher = compiler.start(grammar.compiled, grammar.prefix)
        return GrammarMask(matcher, compiler.vocabulary_of(grammar.compiled), compiler.vocab_size)


class GrammarMask:
    """One sequence's place in a grammar; see `engine.grammar.TokenMask`."""

    def __init__(self, matcher: Any, vocabulary: Any, vocab_size: int, tokens: tuple[int, ...] = ()) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._tokens = list(tokens)
        self._vocab_size = vocab_size

    def fill(self, words: Words) -> bool:
        """Writes the bitmask of the tokens that may come next, int32 [ceil(vocabulary / 32)]; False: all may."""
        if not self._is_half:
            return bool(self._matcher.fill_next_token_bitmask(words.reshape(1, -1), 0))
        words[:] = -1
        self._matcher.fill_next_token_bitmask(words.reshape(1, -1), 0)
        for token_id in self._vocabulary.low_ids:
            words[token_id // 32] &= ~(1 << token_id % 32) if token_id % 32 < 31 else 0x7FFFFFFF
        return True

    def accept(self, token_id: int) -> bool:
        """Moves on by a token; False, and nothing has changed, where the grammar has none of it here."""
        # The library refuses barred ids too, and says so on standard error each time.
        if token_id in self._vocabulary.barred or (self._is_half and token_id in self._vocabulary.low_ids):
            return False
        is_taken = bool(self._matcher.accept_token(token_id))
        if is_taken:
            self._tokens.append(token_id)
        return is_taken

    def rollback(self, num_tokens: int) -> None:
        """Takes the last accepted tokens back."""
        if num_tokens:
            self._matcher.rollback(num_tokens)
            del self._tokens[-num_tokens:]

    def fork(self) -> "GrammarMask":
        """Another one at the same place."""
        return GrammarMask(self._matcher.fork(), self._vocabulary, self._vocab_size, tuple(self._tokens))

    @property
    def _is_half(self) -> bool:
        return bool(self._tokens) and self._tokens[-1] in self._vocabulary.half_ids

    @property
    def is_ended(self) -> bool:
        """Only the end token may follow, or it has followed."""
        if self._matcher.is_terminated():
            return True
        if not self._matcher.is_completed():
            return False
        words = _empty_words(self._vocab_size)
        return self.fill(words) and sum(int(word).bit_count() for word in words.view("uint32")) == 1


def _empty_words(vocab_size: int) -> Words:
    import numpy as np  # not above: a command line that only reads prompts does without

    return np.zeros(-(-vocab_size // 32), np.int32)
