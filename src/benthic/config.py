"""Configurations: frozen dataclasses, read from a TOML file, single leaves overridden by `a.b=value`.

    config = read_config(TrainConfig, Path("recipes/tiny.toml"), ["optimizer.lr=1e-3", "num_steps=100"])

A field may be bool, int, float, str, Path, an enum, a Literal, X | None, tuple[X, ...], tuple[X, Y], dict[str, X] or
another dataclass. TOML has no null: the word "none" stands for None where a field may be it. All mistakes of a file are
reported at once, each with its full name, the value and what is allowed.
"""

import difflib
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from benthic.errors import ConfigError

T = TypeVar("T")


def read_config(cls: type[T], path: Path | None = None, overrides: Sequence[str] = ()) -> T:
    """A `cls` from the file (defaults without one), then the overrides, the later one winning.

    Args:
        cls: a dataclass; validation of its own belongs into its `__post_init__`, raising ConfigError.
        path: a TOML file whose tables mirror the nesting of `cls`.
        overrides: "a.b=value", values as in TOML; the quotes of strings may be left out; "a.b" sets a bool.

    Raises:
        ConfigError: the file cannot be read, or any key or value is wrong.
    """
    values = {} if path is None else _load(path)
    origin = "the configuration" if path is None else str(path)
    for override in overrides:
        _apply_override(cls, values, override)
    return build_config(cls, values, origin=origin)


def build_config(cls: type[T], values: Mapping[str, Any], *, origin: str = "the configuration") -> T:
    """A `cls` from nested mappings as `tomllib` gives them; errors as `read_config`."""
    problems: list[str] = []
    config = _build(cls, values, "", problems)
    if problems:
        raise ConfigError(f"{origin}: " + "\n".join(problems))
    assert isinstance(config, cls)
    return config


def parse_overrides(arguments: Sequence[str]) -> list[str]:
    """Command-line words to overrides: `--a.b 3 --c=x --flag` -> ["a.b=3", "c=x", "flag"].

    Dashes inside a name become underscores. A name without a value is for `read_config` to judge: it suits a bool.

    Raises:
        ConfigError: a word that belongs to no option.
    """
    overrides: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or len(word) == 2:
            raise ConfigError(f"unexpected argument {word!r}; a field is set by --name value or --name=value")
        name, has_value, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not has_value and words and not words[0].startswith("--"):
            has_value, value = "=", words.pop(0)
        overrides.append(f"{name}{has_value}{value}")
    return overrides


def config_leaves(config: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a configuration with its full name, in order of declaration."""
    assert is_dataclass(config)
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from config_leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def to_toml(config: object) -> str:
    """A file that `read_config` reads back as an equal configuration."""
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in config_leaves(config))


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; give the path of a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML file: {error}") from error


def _apply_override(cls: type, values: dict[str, Any], override: str) -> None:
    name, has_value, text = override.partition("=")
    *tables, leaf = name.strip().split(".")
    hint: Any = cls
    for table in tables:
        hint = _inner_dataclass(_hint_of(hint, table))
        inner = values.setdefault(table, {})
        if inner == "none":
            inner = values[table] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"override {override!r}: {table} is a value, not a table")
        values = inner
    leaf_hint = _hint_of(hint, leaf)
    if has_value:
        values[leaf] = _parse_text(text.strip(), leaf_hint)
    elif leaf_hint is Any or bool in (leaf_hint, *get_args(leaf_hint)):
        # Any: an unknown name, which `_build` explains.
        values[leaf] = True
    else:
        raise ConfigError(f"{name} has no value; it must be {_describe(leaf_hint)}")


def _hint_of(cls: Any, name: str) -> Any:
    """The type of a field; Any where there is none, since `_build` names unknown keys better."""
    return get_type_hints(cls).get(name, Any) if isinstance(cls, type) and is_dataclass(cls) else Any


def _inner_dataclass(hint: Any) -> Any:
    candidates = [arg for arg in (hint, *get_args(hint)) if isinstance(arg, type) and is_dataclass(arg)]
    return candidates[0] if candidates else Any


def _parse_text(text: str, hint: Any) -> Any:
    """What a word of the command line means for a field of that type."""
    alternatives = get_args(hint) if _is_union(hint) else (hint,)
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        value = text
    if str in alternatives and not isinstance(value, str) and not any(_accepts(value, a) for a in alternatives):
        return text
    if any(get_origin(a) is tuple for a in alternatives) and not isinstance(value, list):
        element = get_args(next(a for a in alternatives if get_origin(a) is tuple))[0]
        return [_parse_text(part.strip(), element) for part in text.split(",")]
    return value


def _build(cls: type, values: Mapping[str, Any], prefix: str, problems: list[str]) -> Any:
    """An instance of `cls`, or None after adding to `problems`."""
    known: dict[str, Field[Any]] = {field.name: field for field in fields(cls) if field.init}
    hints = get_type_hints(cls)
    before = len(problems)
    problems += [_unknown_key(prefix + key, prefix, known) for key in values if key not in known]
    for name, field in known.items():
        if name not in values and field.default is MISSING and field.default_factory is MISSING:
            problems.append(f"{prefix}{name} is missing; it must be {_describe(hints[name])}")
    given = {
        name: _convert(value, hints[name], prefix + name, problems) for name, value in values.items() if name in known
    }
    if len(problems) > before:
        return None
    try:
        return cls(**given)
    except ConfigError as error:
        problems.append(f"{prefix[:-1]}: {error}" if prefix else str(error))
        return None


def _unknown_key(name: str, prefix: str, known: Iterable[str]) -> str:
    key = name.removeprefix(prefix)
    nearest = max(sorted(known), key=lambda candidate: difflib.SequenceMatcher(None, key, candidate).ratio())
    return f"unknown key {name}; did you mean {prefix}{nearest}? (known here: {', '.join(sorted(known))})"


def _convert(value: Any, hint: Any, name: str, problems: list[str]) -> Any:
    """`value` as the type of the field; adds to `problems` where it is none."""
    if _is_union(hint):
        if type(None) in get_args(hint) and value == "none":
            return None
        for alternative in get_args(hint):
            trial: list[str] = []
            converted = _convert(value, alternative, name, trial)
            if not trial:
                return converted
            if is_dataclass(alternative) and isinstance(value, Mapping):
                problems += trial  # a table can only mean this alternative: its own mistakes say more
                return None
    elif is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, Mapping):
            return _build(hint, value, name + ".", problems)
        if isinstance(value, hint):
            return value
    elif get_origin(hint) is tuple and isinstance(value, list | tuple):
        return _convert_tuple(value, get_args(hint), name, problems)
    elif get_origin(hint) is dict and isinstance(value, Mapping):
        return {key: _convert(item, get_args(hint)[1], f"{name}.{key}", problems) for key, item in value.items()}
    elif _accepts(value, hint):
        return float(value) if hint is float else hint(value) if _is_constructed(hint) else value
    problems.append(f"{name} is {value!r}; it must be {_describe(hint)}")
    return None


def _convert_tuple(value: Sequence[Any], elements: tuple[Any, ...], name: str, problems: list[str]) -> tuple[Any, ...]:
    if elements[-1] is Ellipsis:
        elements = (elements[0],) * len(value)
    if len(elements) != len(value):
        problems.append(f"{name} has {len(value)} elements; it must have {len(elements)}")
        return ()
    return tuple(
        _convert(item, element, f"{name}[{index}]", problems)
        for index, (item, element) in enumerate(zip(value, elements, strict=True))
    )


def _accepts(value: Any, hint: Any) -> bool:
    """Whether a plain value suits a plain type. True is no number, and 3.0 is no integer."""
    if hint is Any:
        return True
    if hint is None or hint is type(None):
        return value is None
    if get_origin(hint) is Literal:
        return any(value == option and type(value) is type(option) for option in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is Path:
        return isinstance(value, str | Path)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return isinstance(value, hint) or value in [member.value for member in hint]
    return isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _is_constructed(hint: Any) -> bool:
    return isinstance(hint, type) and (hint is Path or issubclass(hint, Enum))


def _describe(hint: Any) -> str:
    """A type in words for a message."""
    if _is_union(hint):
        return " or ".join(_describe(alternative) for alternative in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(repr(option) for option in get_args(hint))
    if get_origin(hint) is tuple:
        elements = [_describe(element) for element in get_args(hint) if element is not Ellipsis]
        return f"a list of {', '.join(elements)}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " or ".join(repr(member.value) for member in hint)
    if is_dataclass(hint) or get_origin(hint) is dict:
        return "a table"
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a path"}
    return words.get(hint, "none" if hint is type(None) else getattr(hint, "__name__", str(hint)))


def _toml_value(value: Any) -> str:
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Enum):
        return _toml_value(value.value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_string(key)} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if is_dataclass(value):
        return "{ " + ", ".join(f"{name} = {_toml_value(leaf)}" for name, leaf in config_leaves(value)) + " }"
    return _toml_string(str(value))


def _toml_string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in escaped) + '"'
