"""JSON schemas of single values, as /openapi.json shows them. Null means the same as absent, so most allow it."""

from collections.abc import Sequence
from typing import Any

Schema = dict[str, Any]


def integer(low: int, high: int, note: str = "") -> Schema:
    """An integer in [low, high], or null."""
    return _noted({"type": ["integer", "null"], "minimum": low, "maximum": high}, note)


def number(low: float, high: float, note: str = "", *, above: bool = False) -> Schema:
    """A number in [low, high], or in (low, high] with `above`, or null."""
    least = {"exclusiveMinimum": low} if above else {"minimum": low}
    return _noted({"type": ["number", "null"], **least, "maximum": high}, note)


def text(note: str = "", *, shortest: int = 0, longest: int | None = None) -> Schema:
    """A string, or null."""
    bounds = ({"minLength": shortest} if shortest else {}) | ({} if longest is None else {"maxLength": longest})
    return _noted({"type": ["string", "null"], **bounds}, note)


def flag(note: str = "") -> Schema:
    """true, false or null."""
    return _noted({"type": ["boolean", "null"]}, note)


def choice(values: Sequence[str], note: str = "") -> Schema:
    """One of a few strings, or null."""
    return _noted({"enum": [*values, None]}, note)


def only(*values: Any, note: str) -> Schema:
    """Nothing but these values or null: what would change the answer otherwise is not built."""
    return _noted({"enum": [*values, None]}, note)


def strings(most: int, note: str = "") -> Schema:
    """A string or a list of at most so many, none of them empty, or null."""
    item = {"type": "string", "minLength": 1}
    return _noted({"anyOf": [item, {"type": "array", "items": item, "maxItems": most}, {"type": "null"}]}, note)


def array(items: Schema, note: str = "", *, fewest: int = 0, most: int | None = None) -> Schema:
    """A list, or null."""
    bounds = ({"minItems": fewest} if fewest else {}) | ({} if most is None else {"maxItems": most})
    return _noted({"type": ["array", "null"], "items": items, **bounds}, note)


def members(properties: dict[str, Schema], note: str = "", *, required: Sequence[str] = ()) -> Schema:
    """An object with these members and any others, or null."""
    schema: Schema = {"type": ["object", "null"], "properties": properties}
    return _noted(schema | ({"required": list(required)} if required else {}), note)


def either(*schemas: Schema, note: str = "") -> Schema:
    """What any of these allow."""
    return _noted({"anyOf": list(schemas)}, note)


def needed(schema: Schema) -> Schema:
    """The same without null: the value must be there."""
    kinds = schema.get("type")
    if not isinstance(kinds, list):
        return schema
    left = [kind for kind in kinds if kind != "null"]
    return schema | {"type": left[0] if len(left) == 1 else left}


def _noted(schema: Schema, note: str) -> Schema:
    return schema | ({"description": note} if note else {})
