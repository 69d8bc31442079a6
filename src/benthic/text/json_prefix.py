"""How far a growing text can still become a JSON value: for readers that fail on any other beginning of one."""

import re
from collections.abc import Callable

_SPACE = " \t\n\r"
_LITERALS = ("true", "false", "null")
_NUMBER_BEGUN = re.compile(r"-?(?:0|[1-9][0-9]*)?(?:(?<=[0-9])\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_ESCAPE_BEGUN = re.compile(r'\\(?:["\\/bfnrt]?|u[0-9a-fA-F]{0,4})\Z')
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})\Z')
_HIGH_HALF = re.compile(r"\\u[dD][89abAB]")
_LOW_HALF = re.compile(r"\\u[dD][c-fC-F]")


class JsonPrefix:
    """Takes one text piece by piece, once through, without keeping it."""

    def __init__(self) -> None:
        self._open: list[str] = []
        """The brackets that are not closed yet."""
        self._next: Callable[[str], bool] = self._value
        """Takes one character; False where no JSON goes on with it."""
        self._token = ""
        """The escape, number or literal that is being read."""
        self._has_half = False
        """Whether the other half of a character outside of the basic plane must follow as an escape."""
        self._is_key = False
        self._is_broken = False

    def take(self, text: str) -> str:
        """The part of the text up to the first character that cannot be; nothing after that."""
        for position, char in enumerate(text):
            if self._is_broken or not self._next(char):
                self._is_broken = True
                return text[:position]
        return text

    def _value(self, char: str) -> bool:
        if char in _SPACE:
            return True
        if char == '"':
            self._next, self._is_key = self._string, False
        elif char in "{[":
            self._open.append(char)
            self._next = self._key_or_end if char == "{" else self._value_or_end
        else:
            self._token, self._next = "", self._scalar
            return self._scalar(char)
        return True

    def _value_or_end(self, char: str) -> bool:
        return self._close(char) or self._value(char)

    def _key_or_end(self, char: str) -> bool:
        return self._close(char) or self._key(char)

    def _key(self, char: str) -> bool:
        if char == '"':
            self._next, self._is_key = self._string, True
        return char == '"' or char in _SPACE

    def _string(self, char: str) -> bool:
        if char == '"':
            self._next = self._colon if self._is_key else self._after_value
        elif char == "\\":
            self._token, self._next = char, self._escape
        return char >= " " and (char == "\\" or not self._has_half)

    def _escape(self, char: str) -> bool:
        self._token += char
        if _ESCAPE.match(self._token):
            self._next = self._string
            is_low, had_half = _LOW_HALF.match(self._token) is not None, self._has_half
            self._has_half = _HIGH_HALF.match(self._token) is not None
            return is_low == had_half
        return _ESCAPE_BEGUN.match(self._token) is not None

    def _colon(self, char: str) -> bool:
        if char == ":":
            self._next = self._value
        return char == ":" or char in _SPACE

    def _scalar(self, char: str) -> bool:
        begun = self._token + char
        if any(literal.startswith(begun) for literal in _LITERALS) or _NUMBER_BEGUN.match(begun):
            self._token = begun
            return True
        if self._token in _LITERALS or _NUMBER.match(self._token):
            self._next = self._after_value
            return self._after_value(char)
        return False

    def _after_value(self, char: str) -> bool:
        if char == "," and self._open:
            self._next = self._key if self._open[-1] == "{" else self._value
            return True
        return char in _SPACE or self._close(char)

    def _close(self, char: str) -> bool:
        if not self._open or self._open[-1] + char not in ("{}", "[]"):
            return False
        self._open.pop()
        self._next = self._after_value
        return True
