"""What the answering verbs configure: the engine, for `benthic serve` also the server, from options and leaves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from benthic.config import parse_overrides, read_config
from benthic.engine.config import EngineConfig
from benthic.errors import ConfigError
from benthic.server.config import ServerConfig

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Both configurations of a server."""

    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The configuration of a verb that answers in its own process."""

    engine: EngineConfig = field(default_factory=EngineConfig)


def read_engine_options(leaves: Sequence[str]) -> EngineConfig:
    """The engine's configuration from leaves such as `--engine.num_threads 2`.

    Raises:
        ConfigError: a name is unknown or a value is wrong.
    """
    return _read(EngineOptions, None, [], leaves).engine


def read_serve_options(server: Mapping[str, Any], leaves: Sequence[str], file: Path | None = None) -> ServeOptions:
    """Configurations from a TOML file, then `server` fields that have options of their own, then leaves such as
    `--engine.num_threads 2`; the later one wins.

    Raises:
        ConfigError: the file cannot be read, a name is unknown or a value is wrong.
    """
    own = [f"server.{name}={json.dumps(value)}" for name, value in server.items() if value is not None]
    return _read(ServeOptions, file, own, leaves)


def _read(cls: type[_T], file: Path | None, own: Sequence[str], leaves: Sequence[str]) -> _T:
    """Unknown tables are options that do not exist; read_config explains everything below them."""
    overrides = parse_overrides(leaves)
    tables = {item.name for item in fields(cls)}  # type: ignore[arg-type]
    for override in overrides:
        name = override.partition("=")[0]
        if name.partition(".")[0] not in tables:
            allowed = " and ".join(f"--{table}.FIELD" for table in sorted(tables))
            raise ConfigError(f"no such option --{name}; options with a dot are {allowed}")
    return read_config(cls, file, [*own, *overrides])
