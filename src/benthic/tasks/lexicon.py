"""Words for the spelling tasks, drawn so that every vocabulary entry is met.

How an entry is spelled is learned per entry: words drawn from a dictionary leave a third of the entries almost unseen.
Hence half of the words are drawn by entry first, then among words whose tokenisation contains it.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files

from tokenizers import Tokenizer

COVERED_SHARE = 0.45
INVENTED_SHARE = 0.22
CAPITAL_SHARE = 0.06
WORDS_PER_ENTRY = 40
LETTERS = "abcdefghijklmnopqrstuvwxyz"
FRAMES = (" {}", "{}")
"""A word is tokenised with the blank before it, or bare after a quotation mark; entries differ."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Real words, and for each vocabulary entry words that contain it (empty: draw real and invented words only)."""

    words: tuple[str, ...]
    words_of_entry: tuple[tuple[str, ...], ...] = ()

    def draw(self, rng: random.Random) -> str:
        """A word of 2 to 14 letters, now and then capitalised."""
        kind = rng.random()
        if self.words_of_entry and kind < COVERED_SHARE:
            return rng.choice(rng.choice(self.words_of_entry))
        word = invented_word(rng) if kind > 1 - INVENTED_SHARE else rng.choice(self.words)
        return word.capitalize() if rng.random() < CAPITAL_SHARE else word


def bundled_words() -> tuple[str, ...]:
    """The common words that ship with the package."""
    return tuple((files("benthic") / "assets" / "words.txt").read_text().split())


def invented_word(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS + "aeiou") for _ in range(rng.randint(3, 9)))


def words_by_entry(tokenizer: Tokenizer, words: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """For every vocabulary entry of two or more letters, up to WORDS_PER_ENTRY words tokenised with it.

    Where the given words have too few, words are composed of the entry and short entries around it. Capitalised entries
    get capitalised words. The result depends on its arguments alone.
    """
    entries = spelled_entries(tokenizer)
    found: dict[int, list[str]] = defaultdict(list)
    candidates = sorted({cased for word in words for cased in (word, word.capitalize())})
    for frame in FRAMES:
        for word, encoding in zip(
            candidates, tokenizer.encode_batch([frame.format(word) for word in candidates]), strict=True
        ):
            for entry in entries.keys() & set(encoding.ids):
                found[entry].append(word)
    rng = random.Random("entries")
    pieces = [text for text in entries.values() if len(text) <= 4 and text.islower() and not text.startswith(" ")]
    covered = []
    for entry, text in entries.items():
        sample = sorted(set(found[entry]))
        if len(sample) > WORDS_PER_ENTRY:
            sample = rng.sample(sample, WORDS_PER_ENTRY)
        if len(sample) < 8:
            sample += compose_words(tokenizer, entry, text, pieces, rng)
        if sample:
            covered.append(tuple(sample))
    return tuple(covered)


def spelled_entries(tokenizer: Tokenizer) -> dict[int, str]:
    """Vocabulary entries that are two to twelve letters of one word, with their text (a leading blank included)."""
    texts = {entry: tokenizer.decode([entry]) for entry in range(tokenizer.get_vocab_size())}
    return {entry: text for entry, text in texts.items() if is_word_part(text.removeprefix(" "))}


def is_word_part(text: str) -> bool:
    return text.isascii() and text.isalpha() and 2 <= len(text) <= 12 and (text.islower() or text == text.capitalize())


def compose_words(tokenizer: Tokenizer, entry: int, text: str, pieces: list[str], rng: random.Random) -> list[str]:
    """Up to eight words of at most 14 letters in whose tokenisation `entry` survives the merges."""
    stem = text.removeprefix(" ")
    is_initial = text.startswith(" ") or not text.islower()
    words: list[str] = []
    for _ in range(200):
        before = "" if is_initial or rng.random() < 0.3 else rng.choice(pieces)
        word = before + stem + (rng.choice(pieces) if rng.random() < 0.7 else "")
        frames = [tokenizer.encode(frame.format(word)).ids for frame in FRAMES]
        if len(word) <= 14 and word not in words and any(entry in ids for ids in frames):
            words.append(word)
        if len(words) == 8:
            break
    return words
