"""What a grammar must know of a tokenizer, from its file alone: how each id is spelled, and which ends an answer.

Control tokens are spelled as nothing, so that no grammar ever allows them: a user's turn must not begin inside of a
string. The token of the tool calls' markup is allowed only in grammars that write tool calls.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any

from benthic.errors import CheckpointError
from benthic.text.tokenizer import DSML, EOS

_TAB = "\u0109"
_CONTROL_CHARS = {chr(0x100 + byte) for byte in range(0x20)} - {_TAB, "\u010a", "\u010d"}
"""In the byte-level alphabet, in which a byte below a blank is spelled 256 higher."""


class GrammarVocabulary:
    """The spellings of one `tokenizer.json`. Immutable; the file is read when it is first needed.

    Args:
        path: the file.
        vocab_size: rows of the model's head, ids beyond the file's being spelled as nothing; None: the file's own.
    """

    def __init__(self, path: Path, vocab_size: int | None = None) -> None:
        self.path = path
        self._vocab_size = vocab_size

    @cached_property
    def digest(self) -> str:
        """Equal for equal files."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Ids that masks have bits for."""
        return len(self._entries) if self._vocab_size is None else self._vocab_size

    @property
    def eos_token_id(self) -> int:
        """The id that ends an answer."""
        return self._entries.index(EOS)

    def spellings(self, *, has_markup: bool, is_json: bool) -> list[str]:
        """The spelling of each id in the byte-level alphabet, empty for what no answer may hold.

        Args:
            has_markup: whether the markup of tool calls may be written.
            is_json: whether the answer is JSON, so that a tab can be done without. No answer has control characters
                but tabs and ends of lines: the library admits others in JSON strings of a bounded length.
        """
        kept = {EOS, DSML} if has_markup else {EOS}
        barred = _CONTROL_CHARS | ({_TAB} if is_json else set())
        return [
            entry if entry in kept or (entry not in self._control and barred.isdisjoint(entry)) else ""
            for entry in self._entries
        ]

    @cached_property
    def _settings(self) -> dict[str, Any]:
        try:
            settings = json.loads(self.path.read_text(encoding="utf-8"))
            settings["model"]["vocab"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.path} is not a tokenizer.json: {error!r}") from error
        assert isinstance(settings, dict)
        return settings

    @cached_property
    def _control(self) -> frozenset[str]:
        return frozenset(token["content"] for token in self._settings.get("added_tokens", ()))

    @cached_property
    def _entries(self) -> list[str]:
        ids = dict(self._settings["model"]["vocab"])
        ids |= {token["content"]: token["id"] for token in self._settings.get("added_tokens", ())}
        entries = [""] * (max(ids.values()) + 1)
        for entry, token_id in ids.items():
            entries[token_id] = entry
        return entries
