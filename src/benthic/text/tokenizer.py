"""The byte-level BPE tokenizer of a checkpoint folder (`tokenizer.json`; model.md 4.4).

Two readings of a string exist, and mixing them up is an injection bug:

- `encode` reads *plain text*: what a user, a tool or a document wrote. A literal `<｜User｜>` or `</think>` in it
  becomes ordinary tokens, never the control token.
- `encode_markup` reads *our own markup*: strings that this package rendered, in which control spellings are meant.

Decoding is by bytes: `token_bytes` is what one id contributes, and every text is the UTF-8 reading of the joined bytes
with each invalid sequence replaced by U+FFFD. `Detokenizer` does the same piece by piece.
"""

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import deepseek_recipe
import tokenizers

from benthic.errors import CheckpointError, RequestError

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"

REQUIRED_TOKENS = (BOS, EOS, USER, ASSISTANT, THINK, END_THINK, DSML)
"""Control tokens without which no prompt of a V4 can be written; one id each. Earlier families have the first two."""


_LONG = 4096
"""Characters from which a text takes more than a few milliseconds."""


class Tokenizer:
    """Text to ids and back, for one checkpoint. Immutable; safe to share between threads.

    Args:
        path: a checkpoint folder holding `tokenizer.json`, or the file itself.

    Raises:
        CheckpointError: the file is missing or unreadable, is not byte-level BPE, or lacks BOS or EOS.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = _locate(Path(path))
        self._json = self.path.read_text(encoding="utf-8")
        settings = _parse(self.path, self._json)
        self._full = _build(self.path, self._json)
        self._plain = _build(self.path, json.dumps({**settings, "added_tokens": [], "post_processor": None}))
        self._bytes_of_char = _byte_level_alphabet()
        self._bytes_of_id: dict[int, bytes] = {}
        self.control_tokens = frozenset(str(token["content"]) for token in settings.get("added_tokens", ()))
        """Spellings that mean one token each in markup."""
        self.require((BOS, EOS))
        self._check_leaks()

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, so the number of embedding rows that ids can reach."""
        return max(self._full.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def _longest_token_bytes(self) -> int:
        return max(map(len, self._plain.get_vocab(with_added_tokens=False)))  # a character of the alphabet is a byte

    @cached_property
    def bos_token_id(self) -> int:
        """Id of the token that opens every conversation."""
        return self.token_id(BOS)

    @cached_property
    def eos_token_id(self) -> int:
        """Id of the token that ends every assistant turn; the only stop token of the family."""
        return self.token_id(EOS)

    def token_id(self, token: str) -> int:
        """The id of one vocabulary entry, spelled as in `tokenizer.json`, e.g. `<think>`.

        Raises:
            CheckpointError: the vocabulary has no such entry.
        """
        token_id = self._full.token_to_id(token)
        if token_id is None:
            raise CheckpointError(f"{self.path} has no token {token!r} among its {self.vocab_size} entries")
        return int(token_id)

    def token(self, token_id: int) -> str | None:
        """The vocabulary entry of an id as spelled in `tokenizer.json`, None for a hole or beyond the end."""
        return self._full.id_to_token(token_id) if token_id >= 0 else None

    def require(self, tokens: Sequence[str]) -> None:
        """Refuse a vocabulary that lacks control tokens.

        Raises:
            CheckpointError: some are no added tokens; all are named.
        """
        missing = [token for token in tokens if token not in self.control_tokens]
        if missing:
            raise CheckpointError(
                f"{self.path} lacks the added tokens {', '.join(missing)}; a tokenizer of this family has them"
            )

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: control spellings in it stay text; no BOS is added.

        Raises:
            RequestError: the text holds a lone surrogate, which has no UTF-8 form.
        """
        return _encode(self._plain, _utf8(text))

    def least_tokens(self, text: str) -> int:
        """A bound that costs nothing: plain text has at least so many tokens, whatever it says."""
        return -(-len(_utf8(text).encode()) // self._longest_token_bytes)

    def encode_markup(self, text: str) -> list[int]:
        """Ids of a string in which control spellings mean control tokens. Never for text from outside."""
        return _encode(self._full, _utf8(text))

    def encode_segments(self, segments: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of (text, is_control) pieces: control pieces are one token each, the others plain text.

        Neighbouring plain pieces are joined first: the merges of BPE run over piece borders.
        """
        ids: list[int] = []
        for text, is_control in _join_plain(segments):
            ids += [self.token_id(text)] if is_control else self.encode(text)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelled out, invalid UTF-8 as U+FFFD.

        Raises:
            RequestError: an id is negative or not in the vocabulary.
        """
        self.check_ids(ids)
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes, perhaps a part of a character, that an id contributes; empty for a hole."""
        known = self._bytes_of_id.get(token_id)
        if known is None:
            known = self._bytes_of_id[token_id] = self._read_bytes(self.token(token_id) or "")
        return known

    def check_ids(self, ids: Sequence[int], *, param: str | None = None, vocab_size: int | None = None) -> None:
        """Refuse ids that no embedding row stands for.

        Args:
            ids: token ids from outside.
            param: the request field to blame.
            vocab_size: rows of the model's embedding; the tokenizer's own size if not given.

        Raises:
            RequestError: an id is negative or too large.
        """
        limit = self.vocab_size if vocab_size is None else vocab_size
        for position, token_id in enumerate(ids):
            if not 0 <= token_id < limit:
                place = f"{param}: " if param else ""
                raise RequestError(
                    f"{place}token id {token_id} at position {position} must be in [0, {limit})", param=param
                )

    def check_model(self, vocab_size: int, eos_token_id: int) -> None:
        """Refuse a model that this tokenizer does not fit.

        Raises:
            CheckpointError: the embedding has too few rows, or the configured EOS is another token.
        """
        if self.vocab_size > vocab_size:
            raise CheckpointError(
                f"{self.path} has ids up to {self.vocab_size - 1}, but the model embeds only {vocab_size}; "
                "tokenizer.json and config.json must come from the same checkpoint"
            )
        if self.eos_token_id != eos_token_id:
            raise CheckpointError(
                f"config.json says eos_token_id {eos_token_id}, but {EOS} is id {self.eos_token_id} in {self.path}"
            )

    @cached_property
    def recipe(self) -> deepseek_recipe.Tokenizer:
        """The same vocabulary for deepseek-recipe, which renders prompts and decodes streams."""
        return deepseek_recipe.Tokenizer.from_str(self._json)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids of the control tokens: added tokens that plain text can never produce."""
        return frozenset(self._full.get_added_tokens_decoder())

    def _read_bytes(self, token: str) -> bytes:
        try:
            return bytes(self._bytes_of_char[char] for char in token)
        except KeyError:  # an added token, spelled in text and not in the byte-level alphabet
            return token.encode("utf-8")

    def _check_leaks(self) -> None:
        known = [token for token in REQUIRED_TOKENS if token in self.control_tokens]
        leaks = [token for token in known if self.token_id(token) in self.encode(token)]
        if leaks:
            raise CheckpointError(
                f"{self.path}: plain text spells the control tokens {', '.join(leaks)}; merges must not build them"
            )


def _locate(path: Path) -> Path:
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"no tokenizer at {file}; give a checkpoint folder that holds tokenizer.json")
    return file


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        settings = json.loads(text)
        model, decoder = settings["model"]["type"], settings["decoder"]["type"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not a tokenizer.json: {error!r}") from error
    if (model, decoder) != ("BPE", "ByteLevel"):
        raise CheckpointError(
            f"{path} is a {model} tokenizer with a {decoder} decoder; DeepSeek's are BPE and ByteLevel"
        )
    assert isinstance(settings, dict)
    return settings


def _build(path: Path, text: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001  the library raises plain Exception
        raise CheckpointError(f"{path} cannot be read by tokenizers {tokenizers.__version__}: {error}") from error


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    if len(text) < _LONG:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    # `encode` keeps the interpreter's lock: for megabytes, nothing else in the process would run for seconds.
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _utf8(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}; "
            "it must be valid Unicode"
        ) from None
    return text


def _join_plain(segments: Iterable[tuple[str, bool]]) -> list[tuple[str, bool]]:
    joined: list[tuple[str, bool]] = []
    for text, is_control in segments:
        if joined and not is_control and not joined[-1][1]:
            joined[-1] = (joined[-1][0] + text, False)
        else:
            joined.append((text, is_control))
    return joined


def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte of the byte-level alphabet: printable Latin-1 stands for itself, the rest sits at U+0100 up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
