"""Reading one field of a request body, with an error that names field, value and what is allowed.

Absent and null both read as None. A number that JSON wrote as 1.0 is the integer 1, but not in a list of integers,
which are ids; true is no number; NaN and infinity are none either.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from benthic.errors import RequestError

Body = Mapping[str, Any]


def refuse(name: str, value: Any, allowed: str) -> NoReturn:
    """Raise the error every bad field gets.

    Raises:
        RequestError: always; `param` is `name`.
    """
    raise RequestError(f"{name} is {as_json(value)}; it must be {allowed}", param=name)


def read_integer(body: Body, name: str, low: int, high: int) -> int | None:
    """An integer in [low, high]."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        refuse(name, value, f"an integer in [{low}, {high}]")
    return value


def read_number(body: Body, name: str, low: float, high: float, *, above: bool = False) -> float | None:
    """A finite number in [low, high], or in (low, high] with `above`."""
    value = body.get(name)
    if value is None:
        return None
    allowed = f"a number in {'(' if above else '['}{low:g}, {high:g}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(name, value, allowed)
    if not low <= value <= high or abs(value) == math.inf or (above and value == low):
        refuse(name, value, allowed)
    return float(value)


def read_boolean(body: Body, name: str) -> bool | None:
    """true or false."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        refuse(name, value, "true or false")
    return value


def read_choice(body: Body, name: str, allowed: Sequence[str]) -> str | None:
    """One of a few strings."""
    value = body.get(name)
    if value is not None and (not isinstance(value, str) or value not in allowed):
        refuse(name, value, f"one of {', '.join(allowed)}")
    return value


def read_object(body: Body, name: str) -> dict[str, Any] | None:
    """A JSON object."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        refuse(name, value, "an object")
    return value


def read_strings(body: Body, name: str, max_count: int) -> tuple[str, ...]:
    """A string or a list of them, none empty; () when absent."""
    value = body.get(name)
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or len(strings) > max_count or not all(isinstance(s, str) and s for s in strings):
        refuse(name, value, f"a string or a list of at most {max_count} strings, none of them empty")
    return tuple(strings)


def read_integers(body: Body, name: str, low: int, high: int) -> tuple[int, ...]:
    """A list of integers in [low, high]; () when absent."""
    value = body.get(name)
    if value is None:
        return ()
    if not isinstance(value, list):
        refuse(name, value, f"a list of integers in [{low}, {high}]")
    return tuple(_read_item(item, name, position, low, high) for position, item in enumerate(value))


def _read_item(item: Any, name: str, position: int, low: int, high: int) -> int:
    if isinstance(item, int) and not isinstance(item, bool) and low <= item <= high:
        return item
    message = f"{name}[{position}] is {as_json(item)}; it must be an integer in [{low}, {high}]"
    raise RequestError(message, param=name)


def parse_object(raw: bytes | str | Mapping[str, Any]) -> dict[str, Any]:
    """The JSON object of a request body, as a fresh dict.

    Raises:
        RequestError: not UTF-8, not JSON, NaN or infinity in it, nested too deep, or not an object.
    """
    if isinstance(raw, Mapping):
        return dict(raw)
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except RequestError:
        raise
    except RecursionError:
        raise RequestError("the body is nested too deep; a request needs a few levels") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {describe_json_error(error)}; it must be a JSON object") from error
    if not isinstance(value, dict):
        raise RequestError(f"the body is {as_json(value)}; it must be a JSON object")
    return value


def describe_json_error(error: Exception) -> str:
    """Why JSON could not be read. Python's own words for an endless integer advise on its interpreter."""
    if isinstance(error, ValueError) and "set_int_max_str_digits" in str(error):
        return "an integer has thousands of digits; integers have at most 64 bits"
    return str(error)


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(f"the body holds {name}, which is not JSON; numbers must be finite")


def as_json(value: Any) -> str:
    """A value as a refusal shows it: JSON, and not too much of it."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 80 else text[:77] + "..."
