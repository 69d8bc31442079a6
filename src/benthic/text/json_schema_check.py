"""A JSON schema as a grammar can keep to it, or the reason why it cannot.

xgrammar drops what it does not know without a word, and takes other words more narrowly or more widely than validators
do. So a schema is rewritten here into the part of the language that it keeps exactly, and refused where that is not
possible. The law: whatever the rewritten schema allows is valid under the given one. It may allow less:

- an object with `properties` has no others unless `additionalProperties` says so, and has them in the schema's order;
- a keyword that speaks of one type makes that the type, where none is given;
- the strings of a `pattern` hold no escapes, except those that the pattern spells.

Not kept, as validators do not either by default: `format` beside a pattern or a length, and formats unknown here.
"""

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from benthic.errors import BadSchema
from benthic.text.fields import as_json
from benthic.text.schema_finite import is_finite
from benthic.text.schema_merge import ANNOTATIONS, Schema, are_disjoint, merge, types_of
from benthic.text.schema_shape import MAX_BRANCHES, MAX_DEPTH, MAX_ENUM, TYPES, ShapeCheck
from benthic.text.schema_types import KEYWORDS_OF, allowed_values, keywords_of

_UNKNOWN = {
    "not": "what a value is not cannot be written down; list what it may be",
    "if": "a condition needs the whole value first; use anyOf",
    "then": "a condition needs the whole value first; use anyOf",
    "else": "a condition needs the whole value first; use anyOf",
    "dependentRequired": "one property cannot depend on another; use anyOf",
    "dependentSchemas": "one property cannot depend on another; use anyOf",
    "dependencies": "one property cannot depend on another; use anyOf",
    "contains": "items cannot be counted by what they are; describe all of them by items",
    "minContains": "items cannot be counted by what they are; describe all of them by items",
    "maxContains": "items cannot be counted by what they are; describe all of them by items",
    "unevaluatedItems": "use items: false",
    "unevaluatedProperties": "use additionalProperties",
    "$dynamicRef": "use $ref",
    "$recursiveRef": "use $ref",
}
_JOINTS = ("$ref", "allOf", "anyOf", "oneOf")


def check_schema(schema: Any, param: str, *, is_markup: bool = False) -> Schema:
    """The schema to compile.

    Args:
        schema: as a request has it.
        param: its place in the request, for refusals.
        is_markup: whether it is of a tool's parameters, whose strings the markup of tool calls spells as they are.

    Raises:
        BadSchema: it is no schema, nothing finite satisfies it, or it asks for what a grammar cannot keep to; `param`
            is the place.
    """
    return _Check(schema, param, is_markup).run()


class _Check:
    """One walk over a schema. What is referenced is rewritten apart, once, under a name of its own."""

    def __init__(self, root: Any, param: str, is_markup: bool) -> None:
        self._root = root
        self._param = param
        self._is_markup = is_markup
        self._names: dict[str, str] = {}
        self._num_values = 0
        self._shapes = ShapeCheck()
        self._known_targets: dict[str, Any] = {}

    def run(self) -> Schema:
        self._shapes.walk(self._root, self._param)
        schema = self.schema(self._root, self._param, 0)
        definitions: dict[str, Schema] = {}
        while len(definitions) < len(self._names):
            for pointer, name in list(self._names.items()):
                if name not in definitions:
                    definitions[name] = self.schema(self._target(pointer, self._param), f"{self._param}{pointer}", 1)
        if not is_finite(schema, definitions):
            raise BadSchema(
                f"{self._param} can never be satisfied: its objects would have no end, or too few properties",
                param=self._param,
            )
        return schema | ({"$defs": definitions} if definitions else {})

    def schema(self, given: Any, path: str, depth: int, *, is_raw: bool = False) -> Schema:
        """One schema, rewritten; `is_raw`: a value of a tool's parameter, which is no JSON if it is a string.

        Raises:
            BadSchema: see `check_schema`.
        """
        if given is True:
            return {}
        if given is False:
            raise BadSchema(f"{path} is false: no value is valid there", param=path)
        if not isinstance(given, dict):
            raise BadSchema(f"{path} is {as_json(given)}; it must be a JSON schema, an object or a boolean", param=path)
        if depth > MAX_DEPTH:
            raise BadSchema(f"{path} is nested too deep; a schema has at most {MAX_DEPTH} levels", param=path)
        self._shapes.count_schemas(1, self._param)
        self._refuse_unknown(given, path)
        said = _said(given)
        if any(name in said for name in _JOINTS):
            return self._joined(said, path, depth, is_raw)
        if "const" in said or "enum" in said:
            values = allowed_values(said, path)
            self._count_values(len(values), path)
            return {"enum": values}
        return self._typed(said, path, depth, is_raw)

    def _refuse_unknown(self, given: Schema, path: str) -> None:
        for name, hint in _UNKNOWN.items():
            if name in given and given[name] is not None:
                raise BadSchema(f"{path} has {name}, which a grammar cannot keep to: {hint}", param=path)

    def _count_values(self, count: int, path: str) -> None:
        self._num_values += count
        if self._num_values > MAX_ENUM:
            raise BadSchema(f"{path}: the schema lists more than {MAX_ENUM} values", param=path)

    def _typed(self, said: Schema, path: str, depth: int, is_raw: bool) -> Schema:
        kinds = _kinds(said)
        if not kinds:
            return {}
        schema: Schema = {"type": kinds[0] if len(kinds) == 1 else kinds}
        is_parameters = self._is_markup and path == self._param

        def walk(inner: Any, place: str, raw: bool = False) -> Schema:
            return self.schema(inner, place, depth + 1, is_raw=raw)

        for kind in kinds:
            schema |= keywords_of(kind, said, path, walk, is_raw=is_raw, is_parameters=is_parameters)
        return schema

    def _joined(self, said: Schema, path: str, depth: int, is_raw: bool) -> Schema:
        """A reference, or parts that must hold together, or alternatives."""
        if set(said) == {"$ref"}:
            if path == self._param:  # the root of a tool's parameters must be seen to be an object
                return self.schema(self._resolved(said, path), path, depth + 1)
            pointer = said["$ref"]
            self._target(pointer, path)
            return {"$ref": f"#/$defs/{self._names.setdefault(pointer, f'd{len(self._names)}')}"}
        rest = {name: value for name, value in said.items() if name not in _JOINTS}
        for part in self._parts(said, path):
            rest = merge(rest, self._resolved(part, path), path)
        if any(name in rest for name in ("allOf", "$ref")):
            return self.schema(
                rest | {name: said[name] for name in ("anyOf", "oneOf") if name in said}, path, depth + 1
            )
        alternatives = [name for name in ("anyOf", "oneOf") if name in said or name in rest]
        if not alternatives:
            return self.schema(rest, path, depth + 1, is_raw=is_raw)
        return self._alternatives(alternatives, said | rest, path, depth, is_raw)

    def _alternatives(self, names: Sequence[str], said: Schema, path: str, depth: int, is_raw: bool) -> Schema:
        [name, *others] = names
        if others:
            raise BadSchema(f"{path} has both anyOf and oneOf; a grammar can keep to one of them", param=path)
        branches = said[name]
        rest = {key: value for key, value in said.items() if key not in _JOINTS}
        possible = [(f"{path}.{name}[{at}]", branch) for at, branch in enumerate(branches) if branch is not False]
        if not possible:
            raise BadSchema(f"{path}.{name} has no branch that a value could be valid under", param=path)
        if name == "oneOf":
            self._check_exclusive(possible, rest)
        if rest:
            possible = [(place, merge(rest, self._resolved(branch, place), place)) for place, branch in possible]
        return {"anyOf": [self.schema(branch, place, depth + 1, is_raw=is_raw) for place, branch in possible]}

    def _check_exclusive(self, branches: list[tuple[str, Any]], rest: Schema) -> None:
        resolved = [(place, merge(rest, self._resolved(branch, place), place)) for place, branch in branches]
        for at, (place, branch) in enumerate(resolved):
            for other_place, other in resolved[:at]:
                if not are_disjoint(branch, other):
                    raise BadSchema(
                        f"{place} and {other_place} may both hold, and a grammar cannot make sure that only one does; "
                        "use anyOf, or give each branch a required property with a const of its own",
                        param=place,
                    )

    def _parts(self, said: Schema, path: str) -> list[Any]:
        parts = said.get("allOf", [])
        if len(parts) > MAX_BRANCHES:  # that of its parts among them
            raise BadSchema(f"{path}.allOf has {len(parts)} schemas; at most {MAX_BRANCHES} are read", param=path)
        self._shapes.count_schemas(len(parts), self._param)
        return [*parts, *([{"$ref": said["$ref"]}] if "$ref" in said else [])]

    def _resolved(self, part: Any, path: str) -> Schema:
        """A part without references and allOf of its own at its top."""
        seen: set[str] = set()
        while isinstance(part, dict) and "$ref" in part and not set(part) - ANNOTATIONS - {"$ref"}:
            part = self._target(part["$ref"], path, seen)
        if part is True:
            return {}
        if not isinstance(part, dict):
            raise BadSchema(f"{path}: a part of it is {as_json(part)}; no value is valid under it", param=path)
        self._refuse_unknown(part, path)
        return _said(part)

    def _target(self, pointer: Any, path: str, seen: set[str] | None = None) -> Any:
        if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
            raise BadSchema(
                f"{path}.$ref is {as_json(pointer)}; it must point into the schema itself, as #/$defs/NAME does",
                param=path,
            )
        if seen is not None:
            if pointer in seen:
                raise BadSchema(f"{path}.$ref {pointer} leads back to itself without saying anything", param=path)
            seen.add(pointer)
        if pointer not in self._known_targets:
            self._known_targets[pointer] = target = self._found(pointer, path)
            self._shapes.walk(target, f"{self._param}{pointer}", is_root=pointer == "#")
        return self._known_targets[pointer]

    def _found(self, pointer: str, path: str) -> Any:
        place = self._root
        for step in pointer.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and key in place:
                place = place[key]
            elif isinstance(place, list) and key in map(str, range(len(place))):
                place = place[int(key)]
            else:
                raise BadSchema(f"{path}.$ref is {as_json(pointer)}; the schema has nothing there", param=path)
        return place


def _said(given: Schema) -> Schema:
    """What makes values valid or invalid; null says nothing, but as a value."""
    return {
        name: value
        for name, value in given.items()
        if name not in ANNOTATIONS and (value is not None or name in ("const", "type"))
    }


def _kinds(said: Schema) -> list[str]:
    """The types that a value may have: as given, or those that the keywords speak of; none: all."""
    if "type" not in said:
        return [kind for kind in TYPES if any(name in said for name in KEYWORDS_OF.get(kind, ()))]
    kinds = types_of(said["type"])
    return [kind for kind in kinds if kind != "integer" or "number" not in kinds]
