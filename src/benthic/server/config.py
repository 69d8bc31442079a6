"""Where the server listens and what it refuses, as one frozen record."""

import re
from dataclasses import dataclass
from typing import get_args

from benthic.errors import ConfigError
from benthic.telemetry import LogFormat

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")

_POSITIVE = (
    "max_body_bytes",
    "max_buffered_bytes",
    "max_connections",
    "max_open_sequences",
    "max_choices",
    "keep_alive_s",
    "body_timeout_s",
    "header_timeout_s",
    "idle_timeout_s",
    "write_timeout_s",
    "grammar_timeout_s",
    "grammar_cache_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Options of `benthic serve` that concern HTTP; the engine has its own."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 opens the server to the network."""
    port: int = 8000
    """TCP port; 0 lets the system choose a free one."""
    served_name: str | None = None
    """Model name that clients send; None derives it from the checkpoint's path."""
    api_key: str | None = None
    """When set, clients must send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."""
    api_keys: tuple[str, ...] = ()
    """Further keys, one a client; `api_key` counts as one of them."""
    salt_by_key: bool = False
    """Whether clients of different keys share no cached prefixes, so that none can time what another has asked."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may call this server from a browser, such as https://chat.example.org; * is all."""
    max_body_bytes: int = 16 << 20
    """Larger request bodies are refused with 413."""
    body_timeout_s: float = 30.0
    """A request whose body stops arriving for this long, or comes slower than 16 KiB a second for this long in all, is
    answered with 408, and its connection closed."""
    max_buffered_bytes: int = 1 << 30
    """Bodies of requests that are not answered yet, together; beyond it requests are refused with 429."""
    max_connections: int = 2048
    """Open connections; one more takes the place of the one that has been idle longest, or is refused with 503."""
    header_timeout_s: float = 15.0
    """A connection on which a request's header does not arrive in this time is closed."""
    idle_timeout_s: float = 75.0
    """A connection without a request is closed after this long; longer than clients keep theirs."""
    write_timeout_s: float = 60.0
    """A client that takes less than 16 KiB of what waits for it in this time is cut off, and its sequences end."""
    max_open_sequences: int = 512
    """Sequences running or waiting, over all requests; beyond it requests are refused with 429."""
    max_choices: int = 128
    """Largest `n`, and largest number of prompts times `n` in one request."""
    keep_alive_s: float = 10.0
    """A silent stream sends a comment this often, so that proxies do not cut it."""
    drain_s: float = 30.0
    """After a stop signal, running requests get this long to finish."""
    engine_in_process: bool = False
    """Whether the engine runs in a thread of the server instead of a process of its own, which can be restarted."""
    standby: bool = True
    """Whether a second process stands by to take over from an engine that dies, with the libraries loaded and, for a
    small model on CPU, the engine built: a second without service instead of ten, for some 0.3 to 0.6 GB of memory."""
    admin_key: str | None = None
    """When set, whoever sends it may pause the engine, change its weights and see its state, by routes of their own."""
    thinking: bool | None = None
    """Whether requests that do not say think first; None leaves it to the checkpoint."""
    log_format: LogFormat = "text"
    """Form of the log on stderr: text for people, or one JSON object a line. Each request has a line: its id, route,
    status, tokens and times, and nothing of what was said."""
    strict_fields: bool = False
    """Whether a request field that no part of the server knows is refused instead of ignored."""

    playground: bool = True
    """Whether the playground is served at /: a page for a browser, with a chat and charts of the metrics."""
    grammar_timeout_s: float = 5.0
    """A schema or other grammar that takes longer to compile is refused."""
    grammar_cache_size: int = 1024
    """Outcomes of compiling that are remembered, refusals among them."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port ({self.port}) must be in 0..65535")
        for name in _POSITIVE:
            value = getattr(self, name)
            if not value > 0:
                raise ConfigError(f"{name} ({value}) must be positive")
        if self.log_format not in get_args(LogFormat):
            raise ConfigError(f"log_format is {self.log_format!r}; it must be one of {', '.join(get_args(LogFormat))}")
        if self.max_buffered_bytes < self.max_body_bytes:
            raise ConfigError(
                f"max_buffered_bytes ({self.max_buffered_bytes}) must be >= max_body_bytes ({self.max_body_bytes}): "
                "one body must fit"
            )
        if not self.drain_s >= 0:
            raise ConfigError(f"drain_s ({self.drain_s}) must be 0 or more")
        if self.api_key == "":
            raise ConfigError("api_key ('') must not be empty; leave it out to serve without a key")
        if "" in self.api_keys:
            raise ConfigError(f"api_keys has an empty key (number {self.api_keys.index('') + 1}); leave it out")
        if self.salt_by_key and not self.all_api_keys:
            raise ConfigError("salt_by_key (true) must be false without api_key or api_keys: keys tell clients apart")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origins has {origin!r}; an origin must be * or scheme and host, such as https://example.org"
                )
        if self.admin_key == "":
            raise ConfigError("admin_key ('') must not be empty; leave it out to serve without control routes")

    @property
    def all_api_keys(self) -> tuple[str, ...]:
        """Every key that opens the server; none when it is open."""
        return (() if self.api_key is None else (self.api_key,)) + self.api_keys
