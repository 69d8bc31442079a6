"""Whether the keywords of a schema have the form that they must have, before anything is made of them.

What is put together, compared or counted elsewhere may rely on it: lists are lists, bounds are numbers that a grammar
can write, and there is no more of anything than is looked at in a moment, however references multiply it.
"""

import json
import math
from typing import Any

from benthic.errors import BadSchema
from benthic.text.fields import as_json
from benthic.text.schema_merge import Schema, types_of

MAX_DEPTH = 64
MAX_BRANCHES = 200
MAX_ENUM = 2000
MAX_SCHEMAS = 10_000
TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_MAX_INT = 2**63
"""The library writes integers beyond it as floating-point numbers."""
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TABLES = ("properties", "patternProperties")
_SCHEMAS = ("additionalProperties", "propertyNames", "additionalItems")
_LISTS = ("allOf", "anyOf", "oneOf")


class ShapeCheck:
    """Goes through schemas as a request has them; all of one request count together."""

    def __init__(self) -> None:
        self._num_schemas = 0
        self._num_values = 0

    def walk(self, root: Any, path: str, *, is_root: bool = True) -> None:
        """A schema and all that stands inside of it; not what it refers to.

        Raises:
            BadSchema: a keyword is not of its form, or there is too much.
        """
        waiting = [(root, path, 0)]
        while waiting:
            given, place, depth = waiting.pop()
            if isinstance(given, bool):
                continue
            if not isinstance(given, dict):
                what = f"{place} is {as_json(given)}; it must be a JSON schema, an object or a boolean"
                raise BadSchema(what, param=place)
            if depth > MAX_DEPTH:
                raise BadSchema(f"{place} is nested too deep; a schema has at most {MAX_DEPTH} levels", param=place)
            self.count_schemas(1, path)
            self._check_values(given, place)
            _check_keywords(given, place, is_root=is_root and depth == 0)
            waiting += [(inner, f"{place}.{name}", depth + 1) for name, inner in _inner(given)]

    def count_schemas(self, count: int, path: str) -> None:
        """So many more have been looked at, those that references bring in again among them."""
        self._num_schemas += count
        if self._num_schemas > MAX_SCHEMAS:
            raise BadSchema(
                f"{path} holds more than {MAX_SCHEMAS} schemas, where $ref and allOf are put in; make it smaller",
                param=path,
            )

    def _check_values(self, given: Schema, path: str) -> None:
        values = given.get("enum")
        if values is not None and not isinstance(values, list):
            raise BadSchema(f"{path}.enum is {as_json(values)}; it must be a list", param=path)
        listed = [*(values or ()), *([given["const"]] if "const" in given else [])]
        self._num_values += len(listed)
        if self._num_values > MAX_ENUM:
            raise BadSchema(f"{path}: the schema lists more than {MAX_ENUM} values", param=path)
        for value in listed:
            _check_value(value, path)


def _check_value(value: Any, path: str) -> None:
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if depth > MAX_DEPTH:
            what = f"{path} lists a value that is nested too deep; it may have at most {MAX_DEPTH} levels"
            raise BadSchema(what, param=path)
        if isinstance(item, dict | list):
            inner = item.values() if isinstance(item, dict) else item
            waiting += [(part, depth + 1) for part in inner]
        elif isinstance(item, str):
            _check_text(item, path)
        elif isinstance(item, int | float) and not _is_writable(item):
            raise BadSchema(
                f"{path} lists {_shown(item)}; a number there must be finite, and an integer in [-2^63, 2^63)",
                param=path,
            )


def _is_writable(value: float) -> bool:
    return -_MAX_INT <= value < _MAX_INT if isinstance(value, int) else math.isfinite(value)


def _shown(value: Any) -> str:
    return "an integer of many digits" if isinstance(value, int) and abs(value) > 10**40 else as_json(value)


def _check_text(text: str, path: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise BadSchema(f"{path} has {as_json(text)}, which holds half a character", param=path)


def _check_keywords(given: Schema, path: str, *, is_root: bool) -> None:
    def must(name: str, is_good: bool, what: str) -> None:
        if not is_good:
            raise BadSchema(f"{path}.{name} is {_shown(given[name])}; it must be {what}", param=path)

    for name in given.keys() & {"type"}:
        kinds = types_of(given[name])
        for kind in kinds:
            must(name, isinstance(kind, str) and kind in TYPES, f"of {', '.join(TYPES)}")
        if not kinds:
            raise BadSchema(f"{path}.type is an empty list: no value is valid there", param=path)
    for name in _present(given, _NUMBERS):
        value = given[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        must(name, is_number and _is_writable(value), "a finite number, and an integer in [-2^63, 2^63)")
        must(name, name != "multipleOf" or value > 0, "more than 0")
    for name in _present(given, ("pattern", "format")):
        must(name, isinstance(given[name], str), "a string")
        _check_text(given[name], path)
    for name in _present(given, ("required",)):
        names = given[name]
        must(name, isinstance(names, list) and all(isinstance(item, str) for item in names), "a list of names")
    for name in _present(given, _TABLES):
        must(name, isinstance(given[name], dict), "an object of schemas")
        for key in given[name]:
            _check_text(key, path)
    for name in _present(given, ("prefixItems",)):
        must(name, isinstance(given[name], list), "a list of schemas")
    for name in _present(given, _LISTS):
        branches = given[name]
        must(name, isinstance(branches, list) and bool(branches), "a list of schemas")
        if len(branches) > MAX_BRANCHES:
            raise BadSchema(f"{path}.{name} has {len(branches)} schemas; at most {MAX_BRANCHES} are read", param=path)
    if not is_root and isinstance(given.get("$id"), str) and '"$ref"' in json.dumps(given):
        raise BadSchema(
            f"{path} has $id and a $ref inside of it, which is then counted from there; leave out $id", param=path
        )


def _present(given: Schema, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if given.get(name) is not None]


def _inner(given: Schema) -> list[tuple[str, Any]]:
    """The schemas right inside of one, with their places."""
    found = [(f"{name}.{key}", inner) for name in _TABLES for key, inner in (given.get(name) or {}).items()]
    found += [(name, given[name]) for name in _present(given, _SCHEMAS)]
    items = given.get("items")
    lists = {name: given.get(name) or () for name in (*_LISTS, "prefixItems")}
    if isinstance(items, list):
        lists["items"] = items
    elif items is not None:
        found.append(("items", items))
    return found + [(f"{name}[{at}]", inner) for name, inners in lists.items() for at, inner in enumerate(inners)]
