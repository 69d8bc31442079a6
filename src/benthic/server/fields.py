"""The fields of one request body, read by name, so that what nobody read can be reported as unknown.

The reading itself (types, ranges, the wording of refusals) is `text.fields`, which reads chat bodies as well.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from benthic.errors import RequestError
from benthic.text.fields import (
    read_boolean,
    read_integer,
    read_integers,
    read_number,
    read_object,
    read_strings,
    refuse,
)

_T = TypeVar("_T")


class Fields:
    """One body and the names read from it. Every reader raises RequestError naming field, value and what is allowed."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body
        self._read: set[str] = set()

    def unread(self) -> list[str]:
        """Names in the body that nothing asked for, sorted."""
        return sorted(set(self._body) - self._read)

    def mark(self, names: Sequence[str]) -> None:
        """Count names as known without reading them here."""
        self._read.update(names)

    def take(self, names: Sequence[str], read: Callable[[Mapping[str, Any]], _T]) -> _T:
        """What `read` makes of the body; it reads these names."""
        self._read.update(names)
        return read(self._body)

    def check(self, judge: Callable[[Mapping[str, Any]], None]) -> None:
        """Lets `judge` see the whole body; what it only looks at stays unread."""
        judge(self._body)

    def raw(self, name: str) -> Any:
        """The value as sent; None when absent."""
        self._read.add(name)
        return self._body.get(name)

    def integer(self, name: str, low: int, high: int) -> int | None:
        """An integer in [low, high]; None when absent."""
        self._read.add(name)
        return read_integer(self._body, name, low, high)

    def number(self, name: str, low: float, high: float, *, default: float, above: bool = False) -> float:
        """A finite number in [low, high], or in (low, high] with `above`."""
        self._read.add(name)
        value = read_number(self._body, name, low, high, above=above)
        return default if value is None else value

    def boolean(self, name: str) -> bool:
        """true or false; false when absent."""
        self._read.add(name)
        return read_boolean(self._body, name) or False

    def mapping(self, name: str) -> dict[str, Any]:
        """A JSON object; empty when absent."""
        self._read.add(name)
        return read_object(self._body, name) or {}

    def strings(self, name: str, max_count: int) -> tuple[str, ...]:
        """A string or a list of strings, none empty; () when absent."""
        self._read.add(name)
        return read_strings(self._body, name, max_count)

    def integers(self, name: str, low: int, high: int) -> tuple[int, ...]:
        """A list of integers in [low, high]; () when absent."""
        self._read.add(name)
        return read_integers(self._body, name, low, high)

    def text(self, name: str) -> str:
        """A string that must be there."""
        value = self.optional_text(name)
        return refuse(name, value, "a string") if value is None else value

    def optional_text(self, name: str) -> str | None:
        """A string; None when absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, str):
            refuse(name, value, "a string")
        return value

    def only_default(self, name: str, is_default: Callable[[Any], bool], allowed: str) -> None:
        """Refuse a value that asks for something the server does not do, rather than ignore it."""
        value = self.raw(name)
        if value is not None and not is_default(value):
            refuse(name, value, allowed)


def check_token_ids(values: Sequence[Any], vocab_size: int, *, param: str, place: str | None = None) -> None:
    """Refuse the first value that is no id of the vocabulary, by its index.

    Args:
        values: as JSON had them.
        vocab_size: ids are below it.
        param: the request field to blame.
        place: where the list stands; `param` if not given.

    Raises:
        RequestError: such as: prompt[3] is 4096; it must be a token id, an integer in 0..4095.
    """
    for position, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < vocab_size:
            try:
                refuse(f"{place or param}[{position}]", value, f"a token id, an integer in 0..{vocab_size - 1}")
            except RequestError as error:
                raise RequestError(str(error), param=param) from None


__all__ = ["Fields", "check_token_ids", "refuse"]
