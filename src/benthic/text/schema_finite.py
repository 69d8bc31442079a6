"""Whether a schema has any finite instance. A grammar of one that has none would be written without end."""

from collections.abc import Mapping, Set
from typing import Any

from benthic.text.schema_merge import Schema, types_of

_PREFIX = "#/$defs/"


def is_finite(schema: Schema, definitions: Mapping[str, Schema]) -> bool:
    """Whether something finite satisfies a schema.

    Args:
        schema: as `json_schema_check` rewrites it.
        definitions: what its references name.
    """
    known: set[str] = set()
    while True:
        found = {name for name, inner in definitions.items() if name not in known and _ends(inner, known)}
        if not found:
            return _ends(schema, known)
        known |= found


def _ends(schema: Any, known: Set[str]) -> bool:
    """Whether it has an instance of which all references are known to have one."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema["$ref"].removeprefix(_PREFIX) in known
    if "anyOf" in schema:
        return any(_ends(branch, known) for branch in schema["anyOf"])
    kinds = types_of(schema["type"]) if "type" in schema else []
    return not kinds or any(_kind_ends(kind, schema, known) for kind in kinds)


def _kind_ends(kind: str, schema: Schema, known: Set[str]) -> bool:
    if kind == "object":
        needed = [schema["properties"][name] for name in schema.get("required", ())]
        return all(_ends(inner, known) for inner in needed) and _has_enough(schema, known)
    if kind == "array":
        first = schema.get("prefixItems", [])[: schema.get("minItems", 0)]
        rest = schema.get("minItems", 0) > len(first)
        return all(_ends(inner, known) for inner in first) and (not rest or _ends(schema.get("items", {}), known))
    return True


def _has_enough(schema: Schema, known: Set[str]) -> bool:
    """Whether an object can have as many properties as it must."""
    others = [schema.get("additionalProperties", False), *schema.get("patternProperties", {}).values()]
    if any(_ends(inner, known) for inner in others):
        return True
    return sum(_ends(inner, known) for inner in schema["properties"].values()) >= schema.get("minProperties", 0)
