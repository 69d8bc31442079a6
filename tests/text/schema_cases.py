"""JSON schemas of every kind that a grammar keeps to, by a seed: nested, recursive, with bounds, in all of Unicode."""

import random
from typing import Any

Schema = dict[str, Any]

NAMES = ("name", "größe", "数量", 'with "quotes"', "back\\slash", "emoji 😀", "a/b", "x-y", "line\nbreak", "id")
TEXTS = ("red", "grün", "青", "😀", 'say "hi"', "back\\slash", "tab\there", "", " ", "null", "1", "\u2028")
PATTERNS = (
    *("^[A-Z]{2}-[0-9]{3}$", "^(foo|bar)+$", "[0-9]", "^a", "z$", "^x|y$", r"^\d{4}-\d{2}$", r"^[\w.]+@[a-z]+\.de$"),
    *('^"[a-z]"$', r"^\\[a-z]\\$", r"^[\u4e00-\u9fa5]{1,3}$", "^[^a-z]{3}$", r"^(?:ab){2,3}c?$", r"^\s?[!-/]$"),
)
FORMATS = ("date", "date-time", "uuid", "ipv4", "email", "time", "unheard-of")


def schema_case(seed: int) -> Schema:
    """The schema of a seed; its root is an object or an array more often than not."""
    return _Maker(random.Random(seed)).root()


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._definitions: Schema = {}

    def root(self) -> Schema:
        kind = self._rng.choice((self._object, self._object, self._object, self._array, self._joined, self._leaf))
        schema = kind(3)
        if self._definitions:
            schema = {**schema, "$defs": self._definitions}
        return schema

    def _any(self, depth: int) -> Schema:
        if depth == 0:
            return self._leaf(0)
        kinds = (self._leaf, self._leaf, self._leaf, self._object, self._array, self._joined, self._reference)
        return self._rng.choice(kinds)(depth)

    def _leaf(self, _: int) -> Schema:
        return self._rng.choice((self._string, self._string, self._integer, self._number, self._listed, self._simple))()

    def _string(self) -> Schema:
        rng = self._rng
        match rng.randrange(5):
            case 0:
                return {"type": "string", "pattern": rng.choice(PATTERNS)}
            case 1:
                return {"type": "string", "format": rng.choice(FORMATS), "maxLength": 40}
            case 2:
                return {"type": "string", "pattern": "^[a-zé]+$", "minLength": 2, "maxLength": rng.randint(2, 8)}
            case 3:
                return {"type": ["string", "null"], "maxLength": 6, "title": "a title", "default": None}
        low = rng.randrange(4)
        return {"type": "string", "minLength": low, "maxLength": low + rng.randrange(8)}

    def _integer(self) -> Schema:
        rng = self._rng
        low = rng.randint(-2000, 2000)
        schema: Schema = {"type": "integer"}
        bounds = {"minimum": low, "exclusiveMinimum": low - 0.5, "maximum": low + 300.5, "exclusiveMaximum": low + 301}
        schema |= {name: bounds[name] for name in bounds if rng.random() < 0.4}
        if rng.random() < 0.3 and {"minimum", "maximum"} <= schema.keys():
            schema["multipleOf"] = rng.choice((2, 5, 7, 100))
        return schema

    def _number(self) -> Schema:
        rng = self._rng
        low = round(rng.uniform(-50, 50), rng.randrange(4))
        bounds = {"minimum": low, "exclusiveMaximum": low + rng.choice((0.5, 1, 33.25))}
        return {"type": "number", **{name: bounds[name] for name in bounds if rng.random() < 0.7}}

    def _listed(self) -> Schema:
        rng = self._rng
        values: list[Any] = [*rng.sample(TEXTS, 3), rng.randint(-9, 9), 1.5, True, None, {"k": [1, "é"]}, [None, 2]]
        rng.shuffle(values)
        if rng.random() < 0.2:
            return {"const": values[0]}
        return {"enum": values[: rng.randint(1, 5)]}

    def _simple(self) -> Schema:
        return self._rng.choice(({"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}))

    def _array(self, depth: int) -> Schema:
        rng = self._rng
        low = rng.randrange(3)
        schema: Schema = {
            "type": "array",
            "items": self._any(depth - 1),
            "minItems": low,
            "maxItems": low + rng.randrange(3),
        }
        if rng.random() < 0.3:
            first = [self._any(depth - 1) for _ in range(rng.randint(1, 2))]
            return {"type": "array", "prefixItems": first, "items": False, "minItems": rng.randint(0, len(first))}
        if rng.random() < 0.2:  # before 2020
            schema = {"type": "array", "prefixItems": [self._leaf(0)], "items": self._leaf(0), "maxItems": 3}
        return schema

    def _object(self, depth: int) -> Schema:
        rng = self._rng
        names = rng.sample(NAMES, rng.randint(1, 4))
        schema: Schema = {"type": "object", "properties": {name: self._any(depth - 1) for name in names}}
        schema["required"] = [name for name in names if rng.random() < 0.6]
        match rng.randrange(6):
            case 0:
                schema["additionalProperties"] = False
            case 1:
                schema |= {"additionalProperties": self._leaf(0), "maxProperties": len(names) + 1}
            case 2:
                schema["patternProperties"] = {"^q[0-9]$": self._leaf(0)}
                schema |= {"additionalProperties": False, "maxProperties": len(names) + 1}
            case 3:
                schema["minProperties"] = len(names)
                schema["additionalProperties"] = False
        return schema

    def _joined(self, depth: int) -> Schema:
        rng = self._rng
        match rng.randrange(5):
            case 0:
                return {
                    "anyOf": [self._any(depth - 1) for _ in range(rng.randint(2, 3))],
                    "description": "one of these",
                }
            case 1:
                tagged = [self._tagged(tag, depth) for tag in rng.sample(("cat", "dog", "Übel"), 2)]
                return {"oneOf": tagged, "discriminator": {"propertyName": "kind"}}
            case 2:
                first, second = ({"type": "object", "properties": {name: self._leaf(0)}} for name in ("left", "right"))
                return {"allOf": [{**first, "required": ["left"]}, second]}
            case 3:
                either = [{"required": ["a"]}, {"required": ["b"]}]
                return {"type": "object", "properties": {"a": self._leaf(0), "b": self._leaf(0)}, "anyOf": either}
        return {"oneOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}, {"type": "null"}]}

    def _tagged(self, tag: str, depth: int) -> Schema:
        properties = {"kind": {"const": tag}, "value": self._any(depth - 1)}
        return {"type": "object", "properties": properties, "required": ["kind"], "additionalProperties": False}

    def _reference(self, depth: int) -> Schema:
        rng = self._rng
        if rng.random() < 0.4:
            self._definitions["plain"] = self._definitions.get("plain") or self._leaf(0)
            return {"$ref": "#/$defs/plain", "description": "seen elsewhere"}
        if rng.random() < 0.5:
            self._definitions["tree/node"] = {
                "type": "object",
                "properties": {
                    "value": {"type": "integer"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/tree~1node"}, "maxItems": 2},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
            return {"$ref": "#/$defs/tree~1node"}
        next_one = {"anyOf": [{"$ref": "#/$defs/list"}, {"type": "null"}]}
        self._definitions["list"] = {
            "type": "object",
            "properties": {"head": {"enum": ["α", "β"]}, "tail": next_one},
            "required": ["head", "tail"],
        }
        return {"allOf": [{"$ref": "#/$defs/list"}]}
