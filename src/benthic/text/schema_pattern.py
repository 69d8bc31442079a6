"""Regular expressions of JSON schemas, rewritten so that a grammar means by them what a validator does.

A schema's pattern may match anywhere in a string; a grammar's matches from the first character to the last, and is held
against the characters of the JSON text, in which a quote is two. What a grammar ignores (anchors in the middle) or
cannot do (looking ahead or back) is refused.
"""

import re
from collections.abc import Iterator

from benthic.text.pattern_characters import PatternError, written
from benthic.text.tokenizer import DSML

MAX_PATTERN_LEN = 1000
MAX_REPEATS = 400
MAX_WIDE_REPEATS = 100
"""Of characters of many kinds: from 200 on each token of an answer takes 60 ms (129,280 tokens; [a-z]{1,400}: 8)."""
_NARROW = re.compile(r"[A-Za-z0-9]|\\[dw]|\[(?!\^)[A-Za-z0-9_. -]+\]")
"""A character, or a class of ASCII letters and digits."""
_COUNTS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_REFUSED_GROUPS = {"(?=": "looks ahead", "(?!": "looks ahead", "(?<=": "looks back", "(?<!": "looks back"}
_REFUSED_ESCAPES = {
    **dict.fromkeys("bB", "a word boundary"),
    **dict.fromkeys("AZz", "another spelling of an anchor"),
    **dict.fromkeys("pP", "a Unicode class"),
    **dict.fromkeys("123456789k", "a reference to a group"),
}


def whole_pattern(pattern: str, *, is_json: bool = True) -> str:
    """The expression that whole strings match when `pattern` matches somewhere in them.

    Args:
        pattern: as in a schema.
        is_json: whether the string is JSON text between its quotes; else it stands for itself.

    Raises:
        PatternError: it is too long, or has what a grammar cannot do.
    """
    if len(pattern) > MAX_PATTERN_LEN:
        raise PatternError(f"has {len(pattern)} characters; a pattern has at most {MAX_PATTERN_LEN}")
    anything = "." if is_json else f"[^\\n\\r{DSML[0]}]"
    wholes = []
    for branch in _branches(list(pieces_of(pattern))):
        starts, ends = branch[:1] == ["^"], branch[-1:] == ["$"]
        body = branch[starts : len(branch) - ends]
        if "^" in body or "$" in body:
            raise PatternError("has an anchor in its middle; ^ and $ can stand at the ends of its alternatives only")
        text = "".join(_rewritten(piece, is_json) for piece in body)
        wholes.append(f"{'' if starts else anything + '*'}(?:{text}){'' if ends else anything + '*'}")
    return f"^(?:{'|'.join(wholes)})$"


def check_pattern(pattern: str) -> None:
    """Refuse what a grammar cannot do, or only at a price that every other answer would pay too.

    Raises:
        PatternError: why.
    """
    for _ in pieces_of(pattern):
        pass


def bounded_pattern(pattern: str, least: int, most: int | None) -> str:
    """The pattern for strings of `least` to `most` characters, where it is one repeated character or class.

    Raises:
        PatternError: it is anything else, and a grammar cannot count what it matches.
    """
    found = re.fullmatch(r"\^(\[(?:[^\]\\]|\\.)+\]|\\[dwsDWS]|\.|[A-Za-z0-9])([+*]|\{\d+(?:,\d*)?\})\$", pattern)
    if found is None:
        raise PatternError(
            "stands beside minLength or maxLength, which a grammar can count for one repeated class only"
        )
    low, high = {"+": (1, None), "*": (0, None)}.get(found[2]) or counts_of(found[2])
    highest = [bound for bound in (high, most) if bound is not None]
    bound = min(highest) if highest else None
    return f"^{found[1]}{{{max(low, least)},{'' if bound is None else bound}}}$"


def pieces_of(pattern: str) -> Iterator[str]:
    """The tokens of an expression: escapes, classes, openings of groups, counts, single characters."""
    at, before, last = 0, "", ""
    while at < len(pattern):
        piece = _piece(pattern, at)
        _check_piece(piece, MAX_REPEATS if _NARROW.fullmatch(last) else MAX_WIDE_REPEATS)
        at += len(piece)
        if piece == r"\0" and pattern[at : at + 1].isdigit():
            raise PatternError("has an octal escape, which dialects read differently; write \\x and two digits")
        if _is_count(piece) and _is_count(before) and (piece != "?" or before == "lazy?"):
            raise PatternError(f"repeats what is repeated, by {before}{piece}; put the first into a group")
        before = "lazy?" if piece == "?" and _is_count(before) else piece
        last = piece
        yield piece


def _piece(pattern: str, at: int) -> str:
    char = pattern[at]
    if char == "\\":
        found = re.compile(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL).match(pattern, at)
        if found is None:
            raise PatternError("ends in a backslash")
        return found[0]
    if char == "[":
        found = re.compile(r"\[\^?(?:[^\]\\]|\\.)+\]", re.DOTALL).match(pattern, at)
        if found is None or found[0] == "[^]":
            raise PatternError("has a class of characters that is empty or does not end")
        return found[0]
    if char == "(":
        found = re.compile(r"\((?:\?(?:P?<\w+>|<?[=!]|[^)]?))?").match(pattern, at)
        assert found is not None
        return found[0]
    if char == "{":
        found = _COUNTS.match(pattern, at)
        if found is None and re.compile(r"\{,\d+\}").match(pattern, at):
            raise PatternError("repeats by {, and a number, which dialects read differently; write {0, and the number")
        return found[0] if found is not None else char
    return char


def _check_piece(piece: str, max_repeats: int) -> None:
    if piece.startswith("\\") and piece[1] in _REFUSED_ESCAPES:
        raise PatternError(f"has {piece}, {_REFUSED_ESCAPES[piece[1]]}, which a grammar does not know")
    if piece.startswith("\\") and not _is_known_escape(piece):
        raise PatternError(f"has {piece}, an escape that few dialects have")
    if piece in _REFUSED_GROUPS:
        raise PatternError(f"{_REFUSED_GROUPS[piece]} ({piece}...), which a grammar cannot do")
    if piece.startswith("(?") and not re.fullmatch(r"\(\?(?::|P?<\w+>)", piece):
        raise PatternError(f"has a group that begins with {piece!r}, which a grammar does not know")
    if piece.startswith("["):
        for escape in re.findall(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", piece, re.DOTALL):
            if not _is_known_escape(escape):
                raise PatternError(f"has the class {piece}, with an escape that a grammar does not know there")
    if piece.startswith("{") and len(piece) > 1:
        low, high = counts_of(piece)
        if max(low, high or 0) > max_repeats:
            raise PatternError(f"repeats {piece}; at most {max_repeats} times can be counted")


def _is_known_escape(escape: str) -> bool:
    if escape[1] in "ux":
        return len(escape) > 2
    return not (escape[1].isalnum() or escape[1] == "_") or escape[1] in "dDwWsSnrtfv0"


def _is_count(piece: str) -> bool:
    return piece in ("*", "+", "?", "lazy?") or (piece.startswith("{") and len(piece) > 1)


def counts_of(piece: str) -> tuple[int, int | None]:
    found = _COUNTS.fullmatch(piece)
    assert found is not None, piece
    low = int(found[1])
    if found[2] is None:
        return low, low
    return low, int(found[2]) if found[2] else None


def _branches(pieces: list[str]) -> list[list[str]]:
    """Split at the bars that stand in no group."""
    branches: list[list[str]] = [[]]
    depth = 0
    for piece in pieces:
        depth += piece.startswith("(") - (piece == ")")
        if piece == "|" and depth == 0:
            branches.append([])
        else:
            branches[-1].append(piece)
    return branches


def _rewritten(piece: str, is_json: bool) -> str:
    if piece == ".":
        return written(r"[^\n\r\u2028\u2029]", is_json=is_json)
    if re.match(r"\(\?P?<", piece):
        return "("
    if piece[0] in "()|*+?" or (piece[0] == "{" and len(piece) > 1):
        return piece
    return written(piece, is_json=is_json)
