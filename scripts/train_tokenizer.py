"""Trains the bundled model's tokenizer: `python scripts/train_tokenizer.py` (needs `.data/`, see prepare_text.py).

Byte-level BPE of 4096 entries with DeepSeek's special tokens. Pre-tokenisation is DeepSeek's with two changes: one
digit a piece, and punctuation never glued to the letters after it, so that a quoted word is spelled like the bare one.
"""

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from benthic.tasks.mixture import EXCHANGES, sample_conversation
from benthic.tasks.render import render
from benthic.tasks.sources import Sources

VOCAB_SIZE = 4096
FIRST_SPECIALS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
LAST_SPECIALS = (
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜extracted_url｜>",
    "<｜read_url｜>",
)
DIGIT = r"\p{N}"
PIECE = r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", type=Path, default=Path(".data"))
    arguments.add_argument("--out", type=Path, default=Path("src/benthic/assets/tiny/tokenizer.json"))
    arguments.add_argument("--examples", type=int, default=30_000)
    options = arguments.parse_args()
    tokenizer = train(corpus(Sources.load(options.data), options.examples))
    check_letters(tokenizer)
    options.out.write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    print(f"{options.out}: {tokenizer.get_vocab_size()} entries, {options.out.stat().st_size} bytes")


def corpus(sources: Sources, examples: int) -> Iterator[str]:
    """All running text, generated conversations of every task, and the single letters that spelling is done with."""
    for passages in sources.text.values():
        yield from passages
    rng = random.Random("tokenizer")
    tasks = [*EXCHANGES, "extraction", "extraction", "tools", "lookup"]
    for _ in range(examples):
        conversation = sample_conversation(rng, sources, rng.choice(tasks))
        yield from between_specials("".join(segment.text for segment in render(conversation)))
    for letter in LETTERS:
        yield f" {letter} {letter}" * 300


def train(texts: Iterator[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(DIGIT), "isolated"),
            pre_tokenizers.Split(Regex(PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(LAST_SPECIALS),
        special_tokens=list(FIRST_SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in LAST_SPECIALS])
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def between_specials(text: str) -> list[str]:
    """Special tokens are added after training, so their letters must not shape the merges."""
    return re.split("|".join(map(re.escape, FIRST_SPECIALS + LAST_SPECIALS)), text)


def check_letters(tokenizer: Tokenizer) -> None:
    missing = [piece for letter in LETTERS for piece in (letter, " " + letter) if len(tokenizer.encode(piece).ids) != 1]
    assert not missing, f"no single entry for {missing}"


if __name__ == "__main__":
    main()
