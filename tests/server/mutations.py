"""Good request bodies, and what can be done to them: structure, types, sizes, characters, numbers, bytes."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from tests.server.good_bodies import BODIES

Path = tuple[Any, ...]
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 1.0, 0.5, -0.0, 1e308, 2**31, 2**63, 2**64, -(2**63), "", "1", "x", "\0", "\ud800"),
    *(float("nan"), float("inf"), [], {}, [[]], [None], [1, "a"], {"type": "x"}, {"a": {"b": {}}}),
    *("🌊" * 50, "x" * 9000, "auto", "required", "none", "json_object", {"type": "json_object"}),
    {"type": "function", "function": {"name": "add"}},
    {"type": "regex", "regex": "("},
    {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#"}}},
]
ODD_TEXTS = (
    *("\0", "\ud800", "\udfff\ud800", "\ufeff", "\u202e", "\u0301" * 40, "\U0010ffff", "\r\n\t\x1b[31m", "\u2028"),
    *(
        "👩‍👩‍👧‍👦" * 9,
        "İ" * 9,
        "<｜User｜>",
        "</think>",
        "<｜end▁of▁sentence｜>",
        "<｜DSML｜function_calls>",
        "%s{}${x}",
        "../../etc",
    ),
)
ODD_NUMBERS = (
    0,
    -0.0,
    1e-320,
    1e308,
    -1e308,
    2**31 - 1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    -(2**63) - 1,
)


_LONGEST = 100_000


def places(value: Any, path: Path = ()) -> list[Path]:
    """Paths of everything inside a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, inner in items for place in ((*path, key), *places(inner, (*path, key)))]


def mutated(path: str, rng: random.Random) -> bytes:
    """A good body of an endpoint with one to three things done to it, as bytes."""
    body = json.loads(json.dumps(BODIES[path][0]))
    for _ in range(rng.randint(1, 3)):
        found = places(body)
        if not found:
            break
        *outer, key = rng.choice(found)
        owner: Any = body
        for step in outer:
            owner = owner[step]
        rng.choice(_CHANGES)(owner, key, rng)
    raw = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return rng.choice(_SPOILS)(raw, rng) if rng.random() < 0.08 else raw


def _delete(owner: Any, key: Any, rng: random.Random) -> None:
    del owner[key]


def _double(owner: Any, key: Any, rng: random.Random) -> None:
    if isinstance(owner, list):
        owner.insert(key, copy.deepcopy(owner[key]))
    else:
        owner[f"{key}{rng.choice(('s', '_', ' ', '2'))}"] = copy.deepcopy(owner[key])


def _wrap(owner: Any, key: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 60, 150))):
        owner[key] = rng.choice(([owner[key]], {"type": owner[key]}, {"content": owner[key]}))


def _replace(owner: Any, key: Any, rng: random.Random) -> None:
    owner[key] = copy.deepcopy(rng.choice(ODD_VALUES))


def _add_neighbour(owner: Any, key: Any, rng: random.Random) -> None:
    if isinstance(owner, dict):
        name = rng.choice(("role", "content", "type", "name", "zz", "", "$ref", "n", "echo", "tools", "stream"))
        owner[name] = copy.deepcopy(rng.choice(ODD_VALUES))
    else:
        owner.append(copy.deepcopy(rng.choice(ODD_VALUES)))


def _exchange(owner: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(owner) if isinstance(owner, dict) else range(len(owner)))
    owner[key], owner[other] = owner[other], owner[key]


def _enlarge(owner: Any, key: Any, rng: random.Random) -> None:
    value, times = owner[key], rng.choice((3, 40, 700))
    if isinstance(value, str):
        owner[key] = (value * times * 10)[:_LONGEST]
    elif isinstance(value, list):
        owner[key] = (value * times)[:1000]
    elif isinstance(value, dict):
        owner[key] = value | {f"k{number}": number for number in range(times)}
    elif isinstance(value, int | float):
        owner[key] = value * 10**times if times < 100 else value


def _respell(owner: Any, key: Any, rng: random.Random) -> None:
    odd = rng.choice(ODD_TEXTS)
    if isinstance(owner, dict) and rng.random() < 0.2:
        owner[odd] = owner.pop(key)
        return
    value = owner[key] if isinstance(owner[key], str) else ""
    at = rng.randint(0, len(value))
    owner[key] = value[:at] + odd + value[at:]


def _renumber(owner: Any, key: Any, rng: random.Random) -> None:
    value = owner[key]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    near = (value + 1, value - 1, -value, value / 2, float(value), str(value)) if is_number else ()
    owner[key] = rng.choice((*near, *ODD_NUMBERS))


_Change = Callable[[Any, Any, random.Random], None]
_CHANGES: tuple[_Change, ...] = (
    *(_delete, _double, _wrap, _replace, _replace, _add_neighbour, _exchange, _enlarge, _respell, _renumber),
)


def _cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def _flip(raw: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(raw))
    return raw[:at] + bytes([rng.randrange(256)]) + raw[at + 1 :]


def _mark(raw: bytes, rng: random.Random) -> bytes:
    return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b"\0", b"[", b" " * 5000)) + raw


def _double_key(raw: bytes, rng: random.Random) -> bytes:
    return raw[:-1] + b', "model": "tiny", "max_tokens": 3, "stream": 1e999}'


_SPOILS: tuple[Callable[[bytes, random.Random], bytes], ...] = (_cut, _flip, _mark, _double_key)
