"""Tool markup in a reply, told apart from text before deepseek-recipe reads it.

A tag is `<` or `</`, the DSML control token, and text up to `>`. The control token is what makes it one: the same
characters spelled by ordinary tokens are text that talks about markup, and are shown as they are. The recipe reads
calls well, but it shows a stray tag as text, goes silent at one that it does not know, shows everything where no tools
are offered, and cannot say where calls end. So tags are looked at here first:

    outside of calls    `invoke` begins calls, which are left to the recipe, with the block's opening tag before it
                        a block without a call, a closing tag, an unknown or unfinished tag: dropped, the text around
                        it stays
    without tools       from the tag that begins calls to the one that ends them all is dropped; the names are kept
    inside of calls     a parameter that does not say whether it is a string is one (the recipe would lose its way);
                        a closing tag other than those of a call and a parameter ends the reply

Tokens wait while they may belong to a tag, and come out in order, as they are unless a part of them was dropped.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Literal, TypeVar

Entry = TypeVar("Entry")

_INNER = ("invoke", "parameter")
_MAX_TAG_LEN = 256
_CALLED = re.compile(r'invoke name="([^"]*)"')
_NO_TAG = re.compile(r"[<\n]")
_UNENDED = re.compile(r"([a-z_]+)(\n.*)\Z", re.DOTALL)
"""A tag of one word whose end was forgotten."""
_MAY_BEGIN_TAG = re.compile(r"\s*(</?)?\Z")


@dataclass(frozen=True, slots=True)
class Piece(Generic[Entry]):
    """Tokens and what is left of their text."""

    group: list[Entry]
    text: str
    is_whole: bool = True
    """Whether the text is all that the tokens say."""
    is_marker: bool = False
    """Whether it is the DSML token."""
    begins_calls: bool = False
    """Whether the recipe finds calls from here on."""


@dataclass(slots=True)
class _Tag(Generic[Entry]):
    """A tag that is being read, with the pieces that it stands in."""

    pieces: list[Piece[Entry]]
    before: str
    """Text of the first pieces that does not belong to it."""
    is_closing: bool
    inside: str = ""

    @property
    def name(self) -> str:
        return re.split(r"[\s/>]", self.inside, maxsplit=1)[0]


@dataclass(slots=True)
class MarkupReader(Generic[Entry]):
    """Reads one reply.

    Args:
        has_tools: whether calls may be made.
        mode: "calls" where the prompt has opened them.
    """

    has_tools: bool
    mode: Literal["text", "calls", "dropped calls"] = "text"
    refused: list[str] = field(default_factory=list)
    """Names of functions that were called though no tools are offered."""
    is_over: bool = False
    """Whether the calls have ended, and with them the reply."""
    _held: list[Piece[Entry]] = field(default_factory=list)
    _tag: _Tag[Entry] | None = None
    _block: _Tag[Entry] | None = None
    """A block's opening tag that waits for its first call."""
    _tail: str = ""
    """The last characters, which may open a tag inside of calls."""
    _has_block: bool = False
    _is_opening: bool = False
    """Whether, inside of calls, an opening tag is being read."""

    def push(self, piece: Piece[Entry]) -> list[Piece[Entry]]:
        """Take the next piece, whole characters; returns what is certain."""
        if self.mode == "text":
            return self._push_text(piece)
        if self.mode == "calls":
            mended = self._mend(piece)
            self.is_over = self._closes_with(piece) is not None
            return mended
        closed = self._closes_with(piece)
        dropped = [replace(piece, text="", is_whole=False)]
        if closed is None:
            return dropped
        self.mode, self._tail, self._tag = "text", "", None
        return dropped + self._push_text(Piece([], closed, is_whole=False))

    def flush(self) -> list[Piece[Entry]]:
        """The reasoning or the reply ends: an unfinished tag is dropped, other text comes out."""
        tag, self._tag = self._tag, None
        if self.mode == "calls":
            return self._take_held()
        if self.mode == "dropped calls":
            self.mode = "text"
            return []
        if self._block is not None:
            return self._drop_block(tag.pieces if tag is not None else self._take_held())
        return self._take_held() if tag is None else _without(tag.pieces, tag.before)

    def _push_text(self, piece: Piece[Entry]) -> list[Piece[Entry]]:
        if self._tag is not None:
            return self._push_into_tag(self._tag, piece)
        if piece.is_marker:
            return self._open_tag(piece)
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        if self._block is not None and _MAY_BEGIN_TAG.match(text):
            return []
        dropped = self._drop_block([]) if self._block is not None else []
        if text.endswith(("<", "</")):
            return dropped
        return dropped + self._take_held()

    def _open_tag(self, piece: Piece[Entry]) -> list[Piece[Entry]]:
        before = self._take_held()
        text = "".join(held.text for held in before)
        sign = next((sign for sign in ("</", "<") if text.endswith(sign)), "")
        if not sign:
            dropped = self._drop_block([]) if self._block is not None else []
            return [*dropped, *before, replace(piece, text="", is_whole=False)]
        self._tag = _Tag([*before, piece], text.removesuffix(sign), is_closing=sign == "</")
        return []

    def _push_into_tag(self, tag: _Tag[Entry], piece: Piece[Entry]) -> list[Piece[Entry]]:
        if not piece.is_marker:
            tag.pieces.append(piece)
            tag.inside += piece.text
            inside, end, rest = tag.inside.partition(">")
            forgotten = _UNENDED.match(inside)
            if forgotten is not None:
                inside, end, rest = forgotten[1], ">", forgotten[2] + end + rest
            if end:
                self._tag = None
                return self._complete(tag, inside, rest)
            if not _NO_TAG.search(inside) and len(inside) <= _MAX_TAG_LEN:
                return []
        # No tag after all: its sign and the control token go, its text stays.
        self._tag = None
        dropped = self._drop_block([]) if self._block is not None else []
        dropped += _without(tag.pieces, tag.before) + self._push_text(Piece([], tag.inside, is_whole=False))
        return dropped + (self._push_text(piece) if piece.is_marker else [])

    def _complete(self, tag: _Tag[Entry], inside: str, rest: str) -> list[Piece[Entry]]:
        if not tag.is_closing and tag.name == "invoke":
            return self._begin_calls(tag, inside, rest)
        if tag.is_closing or tag.name in _INNER:
            dropped = self._drop_block(tag.pieces) if self._block is not None else _without(tag.pieces, tag.before)
        else:  # it opens a block: of calls, if one follows
            dropped = self._drop_block([]) if self._block is not None else []
            self._block = tag
        return dropped + (self._push_text(Piece([], rest, is_whole=False)) if rest else [])

    def _begin_calls(self, tag: _Tag[Entry], inside: str, rest: str) -> list[Piece[Entry]]:
        block, self._block = self._block, None
        self._has_block = block is not None
        self._tail = rest[-2:]
        pieces = tag.pieces
        if block is not None:  # what followed its tag within a token is in its own pieces already
            pieces = block.pieces + [piece for piece in pieces if piece.group]
        if self.has_tools:
            self.mode = "calls"
            return [replace(piece, begins_calls=position == 0) for position, piece in enumerate(pieces)]
        called = _CALLED.match(inside)
        self.refused.append(called[1] if called else "")
        dropped = _without(pieces, tag.before if block is None else block.before)
        if inside.endswith("/") and not self._has_block:
            return dropped + self._push_text(Piece([], rest, is_whole=False))
        self.mode = "dropped calls"
        return dropped

    def _mend(self, piece: Piece[Entry]) -> list[Piece[Entry]]:
        """Inside of calls: what follows an opening sign and the marker is held until it is a whole tag."""
        if piece.is_marker:
            waiting = self._take_held()
            self._is_opening = self._tail.endswith("<")
            return [*waiting, piece]
        if not self._is_opening:
            return [piece]
        self._held.append(piece)
        inside, end, rest = "".join(held.text for held in self._held).partition(">")
        if not end and not _NO_TAG.search(inside) and len(inside) <= _MAX_TAG_LEN:
            return []
        self._is_opening = False
        waiting = self._take_held()
        is_untyped = end and inside.startswith("parameter ") and "string=" not in inside
        return _without(waiting, f'{inside} string="true">{rest}') if is_untyped else waiting

    def _closes_with(self, piece: Piece[Entry]) -> str | None:
        """Inside of calls: what follows the tag that ends them, once it is there."""
        if piece.is_marker:
            self._tag = _Tag([], "", self._tail.endswith("</"))
            return None
        self._tail = (self._tail + piece.text)[-2:]
        if self._tag is None:
            return None
        self._tag.inside += piece.text
        inside, end, rest = self._tag.inside.partition(">")
        if not end and len(inside) <= _MAX_TAG_LEN:
            return None
        tag, self._tag = self._tag, None
        is_last = tag.name not in _INNER or (self.mode != "calls" and not self._has_block and tag.name == "invoke")
        return rest if end and tag.is_closing and is_last else None

    def _drop_block(self, following: Sequence[Piece[Entry]]) -> list[Piece[Entry]]:
        """The waiting block's tag, and what follows, leave no text but what stood before them."""
        block, self._block = self._block, None
        assert block is not None
        return _without([*block.pieces, *following], block.before)

    def _take_held(self) -> list[Piece[Entry]]:
        held, self._held = self._held, []
        return held


def _without(pieces: Sequence[Piece[Entry]], text: str) -> list[Piece[Entry]]:
    """One piece of all their tokens, with so much text."""
    entries = [entry for piece in pieces for entry in piece.group]
    return [Piece(entries, text, is_whole=False)] if entries or text else []
