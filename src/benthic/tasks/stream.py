"""The endless stream of training examples, a pure function of its seed.

`ExampleStream` is what the trainer's workers call: `stream(seed)` yields examples drawn with that seed, for ever. Text,
words and tokenizer are read on the first call in each process; what is sent to a worker is three paths and a name.
"""

import random
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from tokenizers import Tokenizer

from benthic.errors import DataError
from benthic.tasks.example import Example, ExampleEncoder
from benthic.tasks.mixture import LONG, MIXTURES, draw_length, sample_conversation
from benthic.tasks.render import render
from benthic.tasks.sources import Sources

TEXT_SHARES = {"wordnet": 3.0, "bible": 1.5, "jargon": 1.5, "devil": 0.5}
"""Shares of documents of running text."""
PASSAGE_CHARACTERS = 1600
"""Passages are cut here."""


class ExampleStream:
    """Examples of a mixture (a key of MIXTURES), at most `max_len` tokens each; longer ones are left out."""

    def __init__(self, mixture: str, *, tokenizer: Path, data: Path, max_len: int = 8192) -> None:
        check_mixture(mixture)
        self._mixture = mixture
        self._tokenizer_path = tokenizer
        self._data = data
        self._max_len = max_len
        self._loaded: tuple[Sources, ExampleEncoder] | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_loaded": None}

    def __call__(self, seed: int) -> Iterator[Example]:
        """Yields examples without end; equal seeds give equal examples.

        Raises:
            DataError: the training text is missing.
        """
        if self._loaded is None:
            tokenizer = Tokenizer.from_file(str(self._tokenizer_path))
            self._loaded = Sources.load(self._data, tokenizer), ExampleEncoder(tokenizer)
        sources, encoder = self._loaded
        rng = random.Random(seed)
        shares = MIXTURES[self._mixture]
        tasks, weights = list(shares), list(shares.values())
        while True:
            example = make_example(rng, sources, encoder, rng.choices(tasks, weights)[0])
            if len(example.token_ids) <= self._max_len:
                yield example


def check_mixture(name: str) -> None:
    """Raises DataError unless there is a mixture of that name."""
    if name not in MIXTURES:
        near = get_close_matches(name, MIXTURES, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(f"unknown mixture {name!r}; {hint}known: {', '.join(sorted(MIXTURES))}")


def make_example(rng: random.Random, sources: Sources, encoder: ExampleEncoder, task: str) -> Example:
    if task == "text":
        return encoder.encode_text(short_text(rng, sources.text))
    if task == "long text":
        return encoder.encode_text(long_text(rng, sources.text))
    assert task in LONG or not task.startswith("long ")
    return encoder.encode(task, render(sample_conversation(rng, sources, task)))


def short_text(rng: random.Random, text: dict[str, list[str]]) -> str:
    """A passage, or a handful of neighbouring dictionary entries."""
    part = draw_part(rng, text)
    count = rng.randint(3, 8) if part == "wordnet" else 1
    start = rng.randrange(len(text[part]) - count)
    return "\n".join(text[part][start : start + count])[:PASSAGE_CHARACTERS]


def long_text(rng: random.Random, text: dict[str, list[str]]) -> str:
    """Neighbouring passages joined to a long document."""
    part, length = draw_part(rng, text), draw_length(rng)
    start, size = rng.randrange(len(text[part])), 0
    pieces: list[str] = []
    while size < length:
        pieces.append(text[part][(start + len(pieces)) % len(text[part])])
        size += len(pieces[-1])
    return "\n".join(pieces)


def draw_part(rng: random.Random, text: dict[str, list[str]]) -> str:
    return rng.choices(list(text), [TEXT_SHARES[part] for part in text])[0]
