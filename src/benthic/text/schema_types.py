"""The keywords of each JSON type, rewritten for xgrammar: what it ignores, refuses or takes otherwise than validators.

What was tried with 0.2.9 stands beside each rewriting.
"""

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Protocol

from benthic.errors import BadSchema
from benthic.text.fields import as_json
from benthic.text.pattern_characters import PatternError
from benthic.text.pattern_search import searches
from benthic.text.schema_merge import Schema, canonical, kind_of, types_of
from benthic.text.schema_pattern import bounded_pattern, whole_pattern

MAX_PROPERTIES = 500
MAX_COUNT = 1_000_000
MAX_MULTIPLES = 400
MAX_SEARCH = 5_000_000
"""Characters of a pattern times those of the texts that it is held against, squared."""
MAX_STEP = 1000
"""Of multiples without bounds; the library does not look at larger ones."""
_PLACES = Decimal("0.000001")
"""To which the library rounds the bounds of numbers, inward."""
_NUMERIC = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
KEYWORDS_OF = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": _NUMERIC,
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "additionalItems"),
    "object": (
        *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties"),
    ),
}
"""What speaks of values of one type only."""
_FORMATS = frozenset(
    ("date", "date-time", "time", "duration", "email", "uuid", "ipv4", "ipv6", "uri", "uri-reference", "uri-template")
    + ("hostname", "json-pointer", "relative-json-pointer")
)
"""Formats that are kept to; the library ignores the others."""


class Walk(Protocol):
    """Rewrites an inner schema at a place; `raw`: its strings stand for themselves."""

    def __call__(self, inner: Any, place: str, raw: bool = False) -> Schema: ...


def keywords_of(kind: str, said: Schema, path: str, walk: Walk, *, is_raw: bool, is_parameters: bool) -> Schema:
    """What a schema says of values of one type.

    Args:
        kind: the type.
        said: the schema's keywords.
        path: its place, for refusals.
        walk: rewrites what stands inside of it.
        is_raw: whether a string is spelled without quotes and escapes.
        is_parameters: whether it is the object of a tool's parameters.

    Raises:
        BadSchema: a keyword is wrong, or cannot be kept to.
    """
    match kind:
        case "string":
            return _string(said, path, is_raw)
        case "integer" | "number":
            return _number(said, path, kind)
        case "array":
            return _array(said, path, walk)
        case "object":
            return _object(said, path, walk, is_parameters)
    return {}


def allowed_values(said: Schema, path: str) -> list[Any]:
    """The values of `enum` and `const` that the other keywords allow; the library looks at no others.

    Raises:
        BadSchema: none is left, or other keywords stand beside that are not looked at here.
    """
    values = said.get("enum", [said.get("const")])
    if not isinstance(values, list):
        raise BadSchema(f"{path}.enum is {as_json(values)}; it must be a list", param=path)
    if "enum" in said and "const" in said:
        values = [value for value in values if canonical(value) == canonical(said["const"])]
    strange = set(said) & set(KEYWORDS_OF["array"] + KEYWORDS_OF["object"])
    if strange:
        raise BadSchema(f"{path} has {min(strange)} beside its list of values; leave it out", param=path)
    _check_search(said.get("pattern", ""), [value for value in values if isinstance(value, str)], path)
    kept = [value for value in values if _is_allowed(value, said, path)]
    if not kept:
        raise BadSchema(f"{path} lists no value that is valid under it", param=path)
    unique = {canonical(value): value for value in kept}
    return list(unique.values())


def _is_allowed(value: Any, said: Schema, path: str) -> bool:
    kinds = types_of(said["type"]) if "type" in said else None
    kind = kind_of(value)
    if kinds is not None and kind not in kinds and not (kind == "integer" and "number" in kinds):
        return False
    if isinstance(value, str):
        low, high = _counts(said, "Length", path)
        pattern = said.get("pattern")
        matches = pattern is None or _searches(pattern, value, path)
        return low <= len(value) and (high is None or len(value) <= high) and matches
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = said.get("minimum", -math.inf), said.get("maximum", math.inf)
        above, below = said.get("exclusiveMinimum", -math.inf), said.get("exclusiveMaximum", math.inf)
        step = said.get("multipleOf")
        return bool(least <= value <= most and above < value < below and (step is None or _is_multiple(value, step)))
    return True


def _check_search(pattern: str, texts: Iterable[str], path: str) -> None:
    if len(pattern) * sum([(len(text) + 1) ** 2 for text in texts]) > MAX_SEARCH:
        raise BadSchema(
            f"{path}.pattern is {as_json(pattern)}, beside names or values that are too long or too many for it; "
            "leave it out",
            param=path,
        )


def _searches(pattern: str, text: str, path: str) -> bool:
    try:
        return searches(pattern, text)
    except PatternError as error:
        raise BadSchema(f"{path}.pattern is {as_json(pattern)}; it {error}", param=path) from None


def _is_multiple(value: float, step: float) -> bool:
    return (
        Decimal(value) % Decimal(step) == 0 if isinstance(value, int) and isinstance(step, int) else value % step == 0
    )


def _string(said: Schema, path: str, is_raw: bool) -> Schema:
    low, high = _counts(said, "Length", path)
    bounds = ({"minLength": low} if low else {}) | ({} if high is None else {"maxLength": high})
    pattern, form = said.get("pattern"), said.get("format")
    if pattern is None:
        # Beside a format lengths would be ignored; a format by itself is kept to.
        return bounds if bounds or form not in _FORMATS else {"format": form}
    try:
        if low or high is not None:  # beside a pattern they would be ignored
            pattern = bounded_pattern(pattern, low, high)
        return {"pattern": whole_pattern(pattern, is_json=not is_raw)}
    except PatternError as error:
        raise BadSchema(f"{path}.pattern is {as_json(pattern)}; it {error}", param=path) from None


def _number(said: Schema, path: str, kind: str) -> Schema:
    found: Schema = {name: said[name] for name in _NUMERIC if name in said}
    if "multipleOf" in found and (kind != "integer" or found["multipleOf"] < 1 or found["multipleOf"] % 1):
        raise BadSchema(
            f"{path}.multipleOf is {found['multipleOf']}; a grammar can keep to whole multiples of integers only",
            param=path,
        )
    if kind == "integer":
        found = {name: _whole(name, value) for name, value in found.items()}
        _check_multiples(found, path)
    else:
        _check_room(found, path)
    return found


def _check_room(found: Schema, path: str) -> None:
    """Between bounds that are too close for it the library admits an empty text."""
    steps = {name: Decimal(repr(value)) / _PLACES for name, value in found.items()}
    lows = [steps["minimum"].to_integral_value(ROUND_CEILING)] if "minimum" in steps else []
    highs = [steps["maximum"].to_integral_value(ROUND_FLOOR)] if "maximum" in steps else []
    if "exclusiveMinimum" in steps:
        lows.append(steps["exclusiveMinimum"].to_integral_value(ROUND_FLOOR) + 1)
    if "exclusiveMaximum" in steps:
        highs.append(steps["exclusiveMaximum"].to_integral_value(ROUND_CEILING) - 1)
    if lows and highs and max(lows) > min(highs):
        raise BadSchema(
            f"{path} has bounds without a number between them, of those with six places after the point that a grammar "
            f"knows: {as_json(found)}",
            param=path,
        )


def _check_multiples(found: Schema, path: str) -> None:
    """Beside bounds that are far apart, or one alone, the library does not look at `multipleOf`."""
    low, high = (
        [found[name] for name in names if name in found]
        for names in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    )
    if "multipleOf" not in found:
        return
    if not (low or high):
        if found["multipleOf"] > MAX_STEP:
            raise BadSchema(
                f"{path}.multipleOf is {found['multipleOf']}; without bounds a grammar can keep to {MAX_STEP} at most",
                param=path,
            )
        return
    if not low or not high or (min(high) - max(low)) // found["multipleOf"] > MAX_MULTIPLES:
        raise BadSchema(
            f"{path}.multipleOf is {found['multipleOf']}; beside bounds a grammar can keep to it where both are given "
            f"and at most {MAX_MULTIPLES} multiples lie between them",
            param=path,
        )


def _whole(name: str, value: float) -> int:
    """The bound that integers know: 1.5 at least is 2 at least, above 1.5 is above 1."""
    round_up = name in ("minimum", "exclusiveMaximum")
    return math.ceil(value) if round_up else math.floor(value)


def _array(said: Schema, path: str, walk: Walk) -> Schema:
    if said.get("uniqueItems") and said.get("maxItems") not in (0, 1):
        raise BadSchema(f"{path} has uniqueItems, which a grammar cannot keep to; leave it out", param=path)
    first, rest = said.get("prefixItems"), said.get("items")
    if isinstance(rest, list):  # before 2020
        first, rest = rest, said.get("additionalItems")
    low, high = _counts(said, "Items", path)
    if first is None:
        first = []
    if not isinstance(first, list):
        raise BadSchema(f"{path}.prefixItems is {as_json(first)}; it must be a list of schemas", param=path)
    if high is not None:
        first = first[:high]  # more than may be there is refused by the library
    found: Schema = {"prefixItems": [walk(item, f"{path}.prefixItems[{at}]") for at, item in enumerate(first)]}
    if not first:
        found = {}
    is_closed = rest is False or (high is not None and high <= len(first))
    if is_closed and low > len(first):
        raise BadSchema(f"{path}.minItems is {low}; it must be at most {len(first)}, for there are no more", param=path)
    found["items"] = False if is_closed else walk({} if rest is None else rest, f"{path}.items")
    if low:
        found["minItems"] = low
    if high is not None and not is_closed:
        found["maxItems"] = high
    return found


def _object(said: Schema, path: str, walk: Walk, is_parameters: bool) -> Schema:
    properties = _table(said, "properties", path)
    patterns = _table(said, "patternProperties", path)
    required = said.get("required") or []
    others = said.get("additionalProperties")
    properties |= _demanded(properties, patterns, required, others, path)
    if len(properties) > MAX_PROPERTIES:
        raise BadSchema(f"{path} has {len(properties)} properties; at most {MAX_PROPERTIES} are read", param=path)
    found: Schema = {
        "properties": {
            name: walk(inner, f"{path}.properties.{name}", is_parameters)
            for name, inner in properties.items()
            if inner is not False or name in required
        }
    }
    if required:
        found["required"] = list(dict.fromkeys(required))
    found |= _other_properties(said, others, properties, patterns, path, walk, is_parameters)
    return found | _property_counts(said, found, path)


def _demanded(properties: Schema, patterns: Schema, required: list[str], others: Any, path: str) -> Schema:
    """Required properties that are not described; the library would not know them."""
    missing = [name for name in required if name not in properties]
    if missing and (others is False or patterns):
        raise BadSchema(
            f"{path}.required names {missing[0]!r}, which is not among its properties, and there can be no others",
            param=path,
        )
    return {name: {} if others is None else others for name in missing}


def _other_properties(
    said: Schema, others: Any, properties: Schema, patterns: Schema, path: str, walk: Walk, is_parameters: bool
) -> Schema:
    names = said.get("propertyNames")
    if names not in (None, True, {}):
        return _named(said, names, properties, patterns, path, walk)
    if patterns:
        return _patterned(others, properties, patterns, path, walk)
    if others is None:
        return {"additionalProperties": "properties" not in said and not properties}
    if isinstance(others, bool):
        return {"additionalProperties": others and not (is_parameters and properties)}
    if is_parameters and properties:  # there a declared name could be written again as another
        return {"additionalProperties": False}
    return {"additionalProperties": walk(others, f"{path}.additionalProperties")}


def _named(said: Schema, names: Any, properties: Schema, patterns: Schema, path: str, walk: Walk) -> Schema:
    pattern = names.get("pattern") if isinstance(names, dict) else None
    if not isinstance(pattern, str) or set(names) - {"pattern", "type", "description"} or properties or patterns:
        raise BadSchema(
            f"{path}.propertyNames is {as_json(names)}; a grammar can keep to one pattern, in an object without "
            "properties of its own",
            param=path,
        )
    others = said.get("additionalProperties")
    return _patterned(False, {}, {pattern: {} if others is None else others}, path, walk)


def _patterned(others: Any, properties: Schema, patterns: Schema, path: str, walk: Walk) -> Schema:
    """One pattern, whose names are no others': two schemas for one name cannot be kept apart."""
    if len(patterns) > 1:
        raise BadSchema(f"{path}.patternProperties has {len(patterns)} patterns; a grammar can keep to one", param=path)
    if not isinstance(others, bool | None):
        raise BadSchema(
            f"{path} has a schema for additionalProperties beside patternProperties, which a grammar cannot keep "
            "apart; set it to false",
            param=path,
        )
    [(pattern, inner)] = patterns.items()
    _check_search(pattern, properties, path)
    for name in properties:
        if _searches(pattern, name, path):
            raise BadSchema(
                f"{path}.properties.{name} is matched by the pattern {as_json(pattern)} too; one schema must hold",
                param=path,
            )
    try:
        whole = whole_pattern(pattern)
    except PatternError as error:
        raise BadSchema(f"{path}.patternProperties has {as_json(pattern)}, which {error}", param=path) from None
    return {
        "patternProperties": {whole: walk(inner, f"{path}.patternProperties")},
        "additionalProperties": False,
    }


def _property_counts(said: Schema, found: Schema, path: str) -> Schema:
    low, high = _counts(said, "Properties", path)
    counts: Schema = {}
    num_required = len(found.get("required", ()))
    if low > max(1, num_required) and (found.get("additionalProperties") or found.get("patternProperties")):
        raise BadSchema(
            f"{path}.minProperties is {low}; with names that the schema does not list, a grammar can tell apart none "
            "from some only: the same name could come twice",
            param=path,
        )
    if low > num_required:
        counts["minProperties"] = low
    if high is not None:
        counts["maxProperties"] = high
    return counts


def _table(said: Schema, name: str, path: str) -> Schema:
    value = said.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadSchema(f"{path}.{name} is {as_json(value)}; it must be an object of schemas", param=path)
    return dict(value)


def _counts(said: Schema, what: str, path: str) -> tuple[int, int | None]:
    """min and max of Length, Items or Properties."""
    found: list[int | None] = []
    for name in (f"min{what}", f"max{what}"):
        value = said.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT):
            raise BadSchema(f"{path}.{name} is {as_json(value)}; it must be an integer in [0, {MAX_COUNT}]", param=path)
        found.append(value)
    low, high = found[0] or 0, found[1]
    if high is not None and low > high:
        raise BadSchema(f"{path}.min{what} is {low}; it must be at most max{what}, {high}", param=path)
    return low, high
