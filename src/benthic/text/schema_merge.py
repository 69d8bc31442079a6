"""Schemas put together: what must hold besides each other becomes one, and what must exclude each other is shown to.

A grammar knows alternatives and nothing else, so `allOf`, and keywords beside `anyOf` or `$ref`, are worked into one
schema before; and `oneOf` is taken for `anyOf` where its branches cannot both hold.
"""

import json
from typing import Any

from benthic.errors import BadSchema

Schema = dict[str, Any]

ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$schema")
    + ("$id", "id", "$comment", "$anchor", "$defs", "definitions", "discriminator", "nullable", "$vocabulary")
)
"""Keywords that make no value valid or invalid where they stand."""
_LARGER = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_SMALLER = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))


def merge(first: Schema, second: Schema, path: str) -> Schema:
    """One schema for what is valid under both; neither is a reference.

    Raises:
        BadSchema: they say what cannot be said in one.
    """
    merged = {name: value for name, value in first.items() if name not in ANNOTATIONS}
    for one, other in ((first, second), (second, first)):
        _check_closed(one, other, path)
        _check_items(one, other, path)
    for name, value in second.items():
        if name not in ANNOTATIONS:
            merged[name] = _merged(name, merged[name], value, path) if name in merged else value
    return merged


def _check_closed(one: Schema, other: Schema, path: str) -> None:
    """Properties of one part are additional ones to the other."""
    if one.get("additionalProperties", True) is True:
        return
    added = set(other.get("properties", ())) - set(one.get("properties", ()))
    patterns = other.get("patternProperties", {})
    if patterns and patterns != one.get("patternProperties"):
        raise BadSchema(
            f"{path} puts together an object with additionalProperties and one with patternProperties, which the first "
            "does not have; write one object",
            param=path,
        )
    if added:
        raise BadSchema(
            f"{path} puts together an object with additionalProperties and one with the property {min(added)!r}, "
            "which the first does not have; list all properties in one object",
            param=path,
        )


def _check_items(one: Schema, other: Schema, path: str) -> None:
    """Items that one part describes by their place are to the other like all others."""
    first = "prefixItems" if "prefixItems" in one or not isinstance(one.get("items"), list) else "items"
    if first in one and "items" in other and one[first] != other.get(first):
        raise BadSchema(
            f"{path} puts together arrays with different {first} and items, which one grammar cannot say; "
            "describe the items in one schema",
            param=path,
        )


def _merged(name: str, first: Any, second: Any, path: str) -> Any:
    if canonical(first) == canonical(second):
        return first
    match name:
        case "properties":
            both = {key: {"allOf": [first[key], second[key]]} for key in first if key in second}
            return first | second | both
        case "required":
            return list(dict.fromkeys([*first, *second]))
        case "type":
            common = [kind for kind in types_of(first) if kind in types_of(second)]
            common += ["integer"] * ("integer" not in common and is_integer_of(first, second))
            if common:
                return common
        case "enum":
            both_list = set(map(canonical, second))
            return [value for value in first if canonical(value) in both_list]
        case "allOf":
            return [*first, *second]
        case "additionalProperties":
            if True in (first, second):
                return second if first is True else first
    if name in _LARGER | _SMALLER and all(isinstance(value, int | float) for value in (first, second)):
        return max(first, second) if name in _LARGER else min(first, second)
    raise BadSchema(
        f"{path} must satisfy two different values of {name}, which one grammar cannot say; write one schema",
        param=path,
    )


def types_of(value: Any) -> list[str]:
    """A type or a list of them, as a list."""
    return list(value) if isinstance(value, list) else [value]


def is_integer_of(first: Any, second: Any) -> bool:
    """Whether one says integer where the other says number."""
    kinds = types_of(first), types_of(second)
    return any("integer" in one and "number" in other for one, other in (kinds, kinds[::-1]))


def are_disjoint(first: Schema, second: Schema) -> bool:
    """Whether it is plain that no value is valid under both; neither is a reference."""
    values = [_values_of(schema) for schema in (first, second)]
    if values[0] is not None and values[1] is not None:
        return not {canonical(value) for value in values[0]} & {canonical(value) for value in values[1]}
    kinds = [_kinds_of(schema) for schema in (first, second)]
    if kinds[0] and kinds[1] and not kinds[0] & kinds[1]:
        return True
    if kinds[0] != {"object"} or kinds[1] != {"object"}:
        return False
    required = set(first.get("required", ())) & set(second.get("required", ()))
    owned = [schema.get("properties", {}) for schema in (first, second)]
    shared = [name for name in required if name in owned[0] and name in owned[1]]
    if any(are_disjoint(_plain(owned[0][name]), _plain(owned[1][name])) for name in shared):
        return True
    return _asks_for_more(first, second) or _asks_for_more(second, first)


def _asks_for_more(first: Schema, second: Schema) -> bool:
    """Whether the first requires a property that the second forbids."""
    is_closed = second.get("additionalProperties") is False and not second.get("patternProperties")
    return is_closed and bool(set(first.get("required", ())) - set(second.get("properties", ())))


def _plain(schema: Any) -> Schema:
    return schema if isinstance(schema, dict) and "$ref" not in schema else {}


def _values_of(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _kinds_of(schema: Schema) -> set[str]:
    kinds = set(types_of(schema["type"])) if "type" in schema else set()
    if not kinds and (values := _values_of(schema)):
        kinds = {kind_of(value) for value in values}
    return kinds | ({"integer"} if "number" in kinds else set())


def canonical(value: Any) -> str:
    """Equal for values that JSON Schema holds equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, dict):
        items = ",".join(f"{json.dumps(key)}:{canonical(item)}" for key, item in sorted(value.items()))
        return f"{{{items}}}"
    if isinstance(value, list):
        return f"[{','.join(map(canonical, value))}]"
    return json.dumps(int(value) if isinstance(value, float) and value.is_integer() else value)


def kind_of(value: Any) -> str:
    """The JSON type of a value; whole numbers are integers."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case str():
            return "string"
        case dict():
            return "object"
        case list():
            return "array"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
    raise AssertionError(f"{type(value).__name__} is no JSON value")
