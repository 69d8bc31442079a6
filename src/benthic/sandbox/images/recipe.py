"""How an image is made, in a TOML file: a base, Debian packages, folders as layers.

name = "tools:1"              # what it is called
base = "debian:12"            # an image of the store to stand on; or [debian] below
cwd = "/work"
env = { EDITOR = "vi" }

[debian]                      # a base from packages, by mmdebstrap
suite = "bookworm"
packages = ["python3-minimal", "git"]

[[layers]]                    # any number, lowest first
folder = "tools"              # beside the recipe
at = "/opt/tools"
kind = "toolkit"
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from benthic.errors import shown
from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.layer import LAYER_KINDS, LayerKind

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Debian:
    """A base made of Debian packages."""

    suite: str = "bookworm"
    packages: tuple[str, ...] = ()
    """Beside the essential ones."""
    variant: str = "minbase"
    """One of mmdebstrap's; `minbase` is the essential packages and apt."""
    mirror: str | None = None
    """A URL or a line of sources.list; None takes Debian's own."""

    def __post_init__(self) -> None:
        for word in (self.suite, self.variant, *self.packages):
            if not word or word.startswith("-") or not set(word) <= _WORD:
                raise ImageError(f"{shown(word)} is no name of a suite or a package; write it as `python3-minimal`")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLayer:
    """A folder of the host as a layer."""

    folder: str
    """Relative to the recipe's own folder."""
    at: str = "/"
    """Where it goes in the sandbox."""
    kind: LayerKind = "workspace"
    owner: int = 0
    """User and group of everything in it; 1000 is the user that commands run as."""
    keep_times: bool = False
    """Whether files keep their times of change; if not, equal folders make equal layers wherever they were copied."""

    def __post_init__(self) -> None:
        if self.kind not in LAYER_KINDS:
            raise ImageError(f"a layer's kind is {shown(self.kind)}; it is one of {', '.join(LAYER_KINDS)}")
        if not self.at.startswith("/"):
            raise ImageError(f"a layer goes to {shown(self.at)}; write a path from the root, such as /opt/tools")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """An image to be made. At most one of `base` and `debian`; with neither, it stands on the tiny image."""

    name: str
    base: str | None = None
    debian: Debian | None = None
    layers: tuple[FolderLayer, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    """Added to the base's."""
    cwd: str | None = None

    def __post_init__(self) -> None:
        if self.base is not None and self.debian is not None:
            raise ImageError(f"the recipe of {self.name} has both a base and Debian packages; it stands on one")


def read_recipe(path: Path) -> Recipe:
    """Reads a recipe.

    Raises:
        ImageError: it is no TOML, or has a field that recipes have not.
    """
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ImageError(f"the recipe {path} cannot be read: {error}") from None
    parts = dict(table)
    if "debian" in parts:
        parts["debian"] = _record(Debian, parts["debian"], f"[debian] of {path}")
    if "layers" in parts:
        layers = parts["layers"] if isinstance(parts["layers"], list) else [parts["layers"]]
        parts["layers"] = tuple(_record(FolderLayer, layer, f"[[layers]] of {path}") for layer in layers)
    if "env" in parts:
        parts["env"] = tuple((name, str(value)) for name, value in _table(parts["env"], f"env of {path}").items())
    if "name" not in parts:
        raise ImageError(f'the recipe {path} has no name; write name = "tools:1"')
    return _record(Recipe, parts, str(path))


def _record(kind: type[Record], table: Any, where: str) -> Record:
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name, value in _table(table, where).items():
        if name not in known:
            raise ImageError(f"{where} has the field {shown(name)}; there are {', '.join(known)}")
        if isinstance(value, dict):
            raise ImageError(f"{where} has a table as {name}; it should be one value")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ImageError(f"{where} is not whole: {error}") from None


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ImageError(f"{where} is {shown(value)}; it should be a table")
    return value


_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-:_")
