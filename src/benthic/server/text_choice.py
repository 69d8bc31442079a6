"""One plain-text continuation on its way out: engine events in, pieces of text with log-probabilities out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benthic.engine.cut import AnswerCut
from benthic.engine.request import Event, FinalOutput, TokenEvent, TokenLogprobs
from benthic.engine.sampling import SamplingParams
from benthic.server.errors import unfinished
from benthic.text.detokenize import Detokenizer
from benthic.text.tokenizer import Tokenizer

LOWEST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


@dataclass(slots=True)
class TokenEntries:
    """Parallel lists of the legacy `logprobs` object; a None is the first prompt token's, which nothing predicts."""

    tokens: list[str] = field(default_factory=list)
    token_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[str, float] | None] = field(default_factory=list)
    text_offset: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event, or several, add to a choice; `finish_reason` is set in the last piece only."""

    text: str
    entries: TokenEntries | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] = ()
    """Generated tokens, where they were asked for."""

    def logprobs_json(self) -> dict[str, Any] | None:
        """The `logprobs` object, null when none were asked for."""
        if self.entries is None:
            return None
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: getattr(self.entries, name) for name in names}

    @staticmethod
    def join(pieces: Sequence["Piece"]) -> "Piece":
        """All pieces of a choice as one."""
        entries = None
        for piece in pieces:
            if piece.entries is not None:
                entries = entries or TokenEntries()
                entries.tokens += piece.entries.tokens
                entries.token_logprobs += piece.entries.token_logprobs
                entries.top_logprobs += piece.entries.top_logprobs
                entries.text_offset += piece.entries.text_offset
        ids = tuple(token_id for piece in pieces for token_id in piece.token_ids)
        return Piece("".join(piece.text for piece in pieces), entries, pieces[-1].finish_reason, ids)


class TextChoice:
    """The state of one choice.

    Args:
        tokenizer: the model's.
        params: what was asked; stop strings and log-probabilities are served here.
        prompt: ids to echo in front; empty when echo is off.
        scores: log-probabilities of the prompt's ids, or None for each when not asked for.
        returns_ids: whether pieces name their tokens; then no token is without a piece.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        *,
        prompt: Sequence[int],
        scores: Sequence[TokenLogprobs | None],
        returns_ids: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._wants_logprobs = params.logprobs is not None
        self._prompt = prompt
        self._scores = scores
        self._returns_ids = returns_ids
        self._offset = 0
        # Ending tokens show no text, also where they do not end the answer.
        skip = {tokenizer.eos_token_id, *params.stop_token_ids}
        self._text = Detokenizer(tokenizer, params.stop, skip, include_stop=params.include_stop)
        self._cut = AnswerCut()

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string has ended the text; the sequence can be ended in the engine."""
        return self._text.stopped is not None

    @property
    def num_tokens(self) -> int:
        """Tokens generated, an ending token and the tokens of a stop string included."""
        return self._cut.num_tokens

    def final(self, given: FinalOutput) -> FinalOutput:
        """What the engine said at the end, up to the token that completed a stop string."""
        return self._cut.apply(given) if self.is_stopped else given

    def echo(self) -> Piece:
        """The prompt as the first piece."""
        entries = TokenEntries() if self._wants_logprobs else None
        for token_id, score in zip(self._prompt, self._scores, strict=True):
            self._enter(entries, token_id, score)
        return Piece(self._tokenizer.decode(self._prompt), entries)

    def push(self, event: Event) -> Piece | None:
        """Take one event; None when it adds nothing yet.

        Raises:
            ApiError: the engine could not finish the sequence.
        """
        if isinstance(event, FinalOutput):
            return self._finish(event)
        if self.is_stopped:
            return None
        self._cut.take(event)
        text = self._text.push((event.token_id,))
        entries = self._entries(event)
        ids = (event.token_id,) if self._returns_ids else ()
        return Piece(text, entries, None, ids) if text or ids or entries is not None else None

    def _finish(self, final: FinalOutput) -> Piece:
        text = "" if self.is_stopped else self._text.flush()
        final = self.final(final)
        check_finished(final)
        return Piece(text, None, final.finish_reason)

    def _entries(self, event: TokenEvent) -> TokenEntries | None:
        if not self._wants_logprobs or event.logprobs is None:
            return None
        entries = TokenEntries()
        self._enter(entries, event.token_id, event.logprobs)
        return entries

    def _enter(self, entries: TokenEntries | None, token_id: int, score: TokenLogprobs | None) -> None:
        raw = self._tokenizer.token_bytes(token_id)
        if entries is not None:
            entries.tokens.append(token_text(self._tokenizer, token_id))
            entries.text_offset.append(self._offset)
            entries.token_logprobs.append(None if score is None else finite(score.chosen))
            entries.top_logprobs.append(None if score is None else self._top(token_id, score))
        # Bytes that continue a character start none, so this counts characters however tokens split them.
        self._offset += sum(byte & 0xC0 != 0x80 for byte in raw)

    def _top(self, token_id: int, score: TokenLogprobs) -> dict[str, float]:
        top: dict[str, float] = {}
        for other, logprob in score.top:
            top.setdefault(token_text(self._tokenizer, other), finite(logprob))
        top[token_text(self._tokenizer, token_id)] = finite(score.chosen)
        return top


def check_finished(final: FinalOutput) -> None:
    """Raises ApiError when the engine ended a sequence by itself, for no reason that the client gave."""
    if final.finish_reason in ("error", "cancelled"):
        raise unfinished(final.error_kind, final.error or "it was cancelled")


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """A token as text; a token that is no whole characters as its bytes, spelled `bytes:\\xe2\\x82`."""
    raw = tokenizer.token_bytes(token_id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    """The value, or the lowest that JSON readers expect in place of minus infinity."""
    return max(logprob, LOWEST_LOGPROB)
