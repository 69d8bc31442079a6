"""Which characters one piece of a schema's pattern stands for, as a grammar has to write them.

A grammar holds an expression against JSON text, in which some characters are two or six, and knows other sets by `\\s`
and `\\W` than validators do, who do not agree either. So sets are written out, as what all of them agree on.
"""

import re

from benthic.text.tokenizer import DSML

_Ranges = list[tuple[int, int]]

_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "0": "\0"}
_SHORT = {"\n": r"\\n", "\r": r"\\r", "\t": r"\\t", "\f": r"\\f", '"': r'\\"', "\\": r"\\\\"}
"""As JSON text spells them, in a regular expression."""
_FOREIGN = [(0xC0, 0x2AF), (0x391, 0x3A1), (0x3A3, 0x3C9), (0x4E00, 0x9FFF)]
"""Letters that are no digits and no blanks to anybody."""
_DIGITS = [(0x30, 0x39)]
_WORD = [*_DIGITS, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_PUNCTUATION = [(0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x5E), (0x60, 0x60), (0x7B, 0x7E)]
_NAMED: dict[str, _Ranges] = {
    "d": _DIGITS,
    "D": [(0x20, 0x2F), (0x3A, 0x7E), *_FOREIGN],
    "w": _WORD,
    "W": [(0x20, 0x20), *_PUNCTUATION],
    "s": [(0x20, 0x20)],
    "S": [(0x21, 0x7E), *_FOREIGN],
}
_IN_TEXT: _Ranges = [(0x09, 0x0A), (0x0D, 0x0D), (0x20, 0xD7FF), (0xE000, 0x10FFFF)]
_IN_JSON: _Ranges = [(0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF)]
_MEMBER = re.compile(r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\.|.", re.DOTALL)


class PatternError(ValueError):
    """Why a pattern cannot be kept to; without its place."""


def written(piece: str, *, is_json: bool) -> str:
    """A character or a class, for a grammar.

    Args:
        piece: as in a schema.
        is_json: whether the text is JSON between quotes; else it stands for itself, up to the token of tool calls.

    Raises:
        PatternError: no text can hold it.
    """
    if piece.startswith("["):
        return _class(piece, is_json)
    if piece[0] == "\\" and piece[1] in _NAMED:
        return _set(_NAMED[piece[1]], "", is_json)
    return _spelled(_character(piece), is_json)


def _class(piece: str, is_json: bool) -> str:
    is_negated = piece.startswith("[^")
    members = _MEMBER.findall(piece[1 + is_negated : -1])
    ranges: _Ranges = []
    names: list[str] = []
    at = 0
    while at < len(members):
        member = members[at]
        is_range = at + 2 < len(members) and members[at + 1] == "-"
        if member[0] == "\\" and member[1:] in _NAMED:
            if is_range:
                raise PatternError(f"has the class {piece}, where a range begins with {member}")
            names.append(member[1:])
            at += 1
            continue
        low = high = ord(_character(member))
        if is_range:
            last = members[at + 2]
            if last[0] == "\\" and last[1:] in _NAMED:
                raise PatternError(f"has the class {piece}, where a range ends with {last}")
            high = ord(_character(last))
        if low > high:
            raise PatternError(f"has the class {piece}, where a range ends before it begins")
        ranges.append((low, high))
        at += 3 if is_range else 1
    if is_negated:
        kept = _IN_JSON if is_json else _IN_TEXT
        for name in names:
            kept = _common(kept, _NAMED[name.swapcase()])
        return _set(_without(kept, ranges), "", is_json)
    singles = "".join(dict.fromkeys(chr(low) for low, high in ranges if low == high))
    return _set([*ranges, *(part for name in names for part in _NAMED[name])], singles, is_json)


def _set(ranges: _Ranges, singles: str, is_json: bool) -> str:
    """A set of characters; those that are named by themselves may be spelled by an escape."""
    bar = ord(DSML[0])
    kept = _common(sorted(ranges), _IN_JSON) if is_json else _without(_common(sorted(ranges), _IN_TEXT), [(bar, bar)])
    parts = [f"[{''.join(_range(low, high) for low, high in kept)}]"] if kept else []
    if is_json:
        parts += [_escape(char) for char in singles if _is_escaped(char)]
    if not parts:
        raise PatternError("has a class of which no character can be written here")
    return parts[0] if len(parts) == 1 and kept else f"(?:{'|'.join(parts)})"


def _range(low: int, high: int) -> str:
    return _code(low) if low == high else f"{_code(low)}-{_code(high)}"


def _code(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


def _character(piece: str) -> str:
    if len(piece) > 1 and piece[1] in "ux":
        char = chr(int(piece[2:], 16))
    elif len(piece) > 1:
        char = _CONTROLS.get(piece[1], piece[1])
    else:
        char = piece
    if "\ud800" <= char <= "\udfff":
        raise PatternError(f"has {piece}, which is half a character")
    return char


def _is_escaped(char: str) -> bool:
    return char in '"\\' or char < " "


def _escape(char: str) -> str:
    return _SHORT.get(char) or f"\\\\u{ord(char):04x}"


def _spelled(char: str, is_json: bool) -> str:
    if is_json and _is_escaped(char):
        return f"(?:{_escape(char)})"
    if not is_json and char < " " and char not in "\t\n\r":
        raise PatternError(f"has {char!r}, which no text holds")
    return "\\" + char if char in r"\^$.|?*+()[]{}-/" else char


def _common(first: _Ranges, second: _Ranges) -> _Ranges:
    found = [(max(low, other), min(high, end)) for low, high in first for other, end in second]
    return sorted((low, high) for low, high in found if low <= high)


def _without(ranges: _Ranges, taken: _Ranges) -> _Ranges:
    for low, high in taken:
        cut = [part for begin, end in ranges for part in ((begin, min(end, low - 1)), (max(begin, high + 1), end))]
        ranges = [(begin, end) for begin, end in cut if begin <= end]
    return ranges
