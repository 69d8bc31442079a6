"""Tokenizers for the tests of text: one trained here, so that little depends on it, and the bundled one."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

import benthic
from benthic.text import Tokenizer

CONTROL = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
)
CORPUS = (
    ">> hello world, the quick brown fox; tool_calls invoke name parameter string true false think User Assistant",
    "你好，世界。数 三百四十七 かな カナ 한국어 emoji 😀 👨‍👩‍👧 é ü ß ﬁ",
    '{"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}',
)


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level BPE of about 400 entries and DeepSeek's control tokens."""
    folder = tmp_path_factory.mktemp("small_tokenizer")
    bpe = tokenizers.Tokenizer(models.BPE())
    words = Regex(r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"),
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS * 3, trainer)
    bpe.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def tokenizer(small_folder: Path) -> Tokenizer:
    return Tokenizer(small_folder)


@pytest.fixture(scope="session")
def tiny_folder() -> Path:
    return Path(benthic.__file__).parent / "assets" / "tiny"


@pytest.fixture(scope="session")
def bytes_to_ids(tokenizer: Tokenizer) -> list[int]:
    """The id of each single byte."""
    single = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
    return [single[bytes([byte])] for byte in range(256)]
