"""What `benthic serve` configures: the server and the engine, from options and leaves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benthic.config import parse_overrides, read_config
from benthic.engine.config import EngineConfig
from benthic.server.config import ServerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Both configurations of a server."""

    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)


def read_serve_options(server: Mapping[str, Any], leaves: Sequence[str]) -> ServeOptions:
    """Configurations from `server` fields that have options of their own, then leaves such as `--engine.num_threads 2`.

    Raises:
        ConfigError: a name is unknown or a value is wrong.
    """
    own = [f"server.{name}={json.dumps(value)}" for name, value in server.items() if value is not None]
    return read_config(ServeOptions, None, [*own, *parse_overrides(leaves)])
