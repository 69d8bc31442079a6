"""What the generators draw from besides themselves: running text and words."""

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from benthic.errors import DataError
from benthic.tasks.lexicon import Lexicon, bundled_words, words_by_entry

TEXT_PARTS = ("wordnet", "bible", "jargon", "devil")


@dataclass(frozen=True, slots=True)
class Sources:
    """Words for spelling tasks, and passages of running text by origin (empty on a machine without `.data/`)."""

    lexicon: Lexicon
    text: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def bundled(cls) -> "Sources":
        """What ships with the package: enough for every task but reading text."""
        return cls(Lexicon(bundled_words()))

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer | None = None) -> "Sources":
        """Reads `text.json.gz` (see scripts/prepare_text.py); with a tokenizer, words cover its vocabulary.

        Raises:
            DataError: the file is not there or holds something else.
        """
        path = text_path(folder)
        try:
            content = json.loads(gzip.decompress(path.read_bytes()))
            words, text = tuple(content["words"]), {part: list(content[part]) for part in TEXT_PARTS}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not what scripts/prepare_text.py writes ({error!r}); make it again") from error
        return cls(Lexicon(words, words_by_entry(tokenizer, words) if tokenizer else ()), text)


def text_path(folder: Path) -> Path:
    """The file of running text in a data folder.

    Raises:
        DataError: it is not there.
    """
    path = folder / "text.json.gz"
    if not path.is_file():
        raise DataError(f"no training text at {path}; `python scripts/prepare_text.py` makes it on Debian")
    return path
