"""Whether a schema's pattern matches somewhere in a text, in time that grows with both and never doubles.

Python's `re` tries one way after the other: a client's `(a+)+$` would hold the server for hours over one of its own
names. Here all ways are walked at once, as the set of places in the text that they have come to.
"""

import re
from typing import NamedTuple, Union

from benthic.text.pattern_characters import PatternError
from benthic.text.schema_pattern import counts_of, pieces_of

MAX_GROUPS = 50
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_Places = frozenset[int]
_Branches = list[list["_Repeat"]]


class _Repeat(NamedTuple):
    """A character, an anchor, or alternatives in a group, so many times; None: without end."""

    of: Union[str, "re.Pattern[str]", _Branches]
    least: int = 1
    most: int | None = 1


def searches(pattern: str, text: str) -> bool:
    """Whether it does.

    Raises:
        PatternError: it is no regular expression, or one that a grammar cannot keep to.
    """
    pieces = list(pieces_of(pattern))[::-1]
    branches = _parsed(pieces)
    if pieces:
        raise PatternError("has a closing bracket without an opening one")
    return bool(_after(branches, frozenset(range(len(text) + 1)), text))


def _parsed(pieces: list[str], depth: int = 0) -> _Branches:
    """Takes alternatives up to the end of their group from the end of the list."""
    if depth > MAX_GROUPS:
        raise PatternError(f"has more than {MAX_GROUPS} groups inside of each other")
    branches: _Branches = [[]]
    while pieces and pieces[-1] != ")":
        piece = pieces.pop()
        if piece == "|":
            branches.append([])
            continue
        if piece.startswith("("):
            repeat = _Repeat(_parsed(pieces, depth + 1))
            if not pieces:
                raise PatternError("has a group that does not end")
            pieces.pop()
        else:
            repeat = _Repeat(piece if piece in "^$" else _character(piece))
        branches[-1].append(_counted(repeat, pieces))
    return branches


def _character(piece: str) -> "re.Pattern[str]":
    if piece in _COUNTS:
        raise PatternError(f"repeats nothing by {piece}")
    try:
        return re.compile(re.escape(piece) if piece in "{}]" else piece)
    except re.error as error:
        raise PatternError(f"has {piece}, which is not of a regular expression: {error}") from None


def _counted(repeat: _Repeat, pieces: list[str]) -> _Repeat:
    if not pieces or not (pieces[-1] in _COUNTS or len(pieces[-1]) > 1 and pieces[-1].startswith("{")):
        return repeat
    count = pieces.pop()
    least, most = _COUNTS.get(count) or counts_of(count)
    if pieces and pieces[-1] == "?":  # which of several matches is found first makes no difference
        pieces.pop()
    return repeat._replace(least=least, most=most)


def _after(branches: _Branches, places: _Places, text: str) -> _Places:
    """Where alternatives may end that begin at one of these places."""
    ends: set[int] = set()
    for branch in branches:
        reached = places
        for repeat in branch:
            reached = _after_repeat(repeat, reached, text)
        ends |= reached
    return frozenset(ends)


def _after_repeat(repeat: _Repeat, places: _Places, text: str) -> _Places:
    ends = set(places) if repeat.least == 0 else set()
    count = 0
    while places and count != repeat.most:
        following = _after_once(repeat.of, places, text)
        count += 1
        if following == places:  # and so would every further one
            return frozenset(ends | following)
        places = following
        if count >= repeat.least:
            if places <= ends:
                break
            ends |= places
    return frozenset(ends)


def _after_once(of: Union[str, "re.Pattern[str]", _Branches], places: _Places, text: str) -> _Places:
    match of:
        case "^":
            return places & {0}
        case "$":
            return places & {len(text), len(text) - text.endswith("\n")}
        case re.Pattern():
            return frozenset(at + 1 for at in places if at < len(text) and of.fullmatch(text[at]))
    assert isinstance(of, list)
    return _after(of, places, text)
