"""What an agent and a gateway are told when they start."""

import re
from dataclasses import dataclass
from pathlib import Path

from benthic.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """One host's agent."""

    listen: str
    """`http://address:port` or `unix:/path/of/socket`; a socket is for root alone."""
    name: str = "host"
    """Of the host, in the fleet; each has its own."""
    url: str | None = None
    """Where the gateway reaches it; None is `listen`."""
    gateway: str | None = None
    """Whom to send heartbeats; None serves alone."""
    token: str | None = None
    """The fleet's own secret, which agents and gateway share. Required unless `listen` is a unix socket."""
    state_root: Path | None = None
    """Where sandboxes keep their state; None is the user's own."""
    trajectories: Path | None = None
    """Where logs lie, if not there: on a file system that hosts share, they can make each other's sandboxes again."""
    heartbeat_s: float = 2.0
    max_sandboxes: int = 3200
    """Alive at once."""
    max_waiting: int = 1000
    """Creations that wait for their turn to start; more are refused, and go to another host or try later."""
    max_starting: int = 8
    """Starts under way at once: a start storm waits here instead of thrashing."""
    cpu_overcommit: float = 64.0
    """Promised processors for each real one; most sandboxes use a twentieth of what they ask for."""
    memory_overcommit: float = 32.0
    """Promised memory over real memory. `min_free_memory_bytes` is what protects the host."""
    min_free_memory_bytes: int = 512 << 20
    """A host with less memory to spare starts no sandbox."""
    clear_every_s: float = 3600.0
    """How often what nothing needs is removed (`clear_garbage`), for which all logs are read; 0: never."""

    def __post_init__(self) -> None:
        _check_listen(self.listen)
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"name ({self.name!r}) must be letters, digits, dots and dashes, 63 at most")
        if self.token is None and not self.listen.startswith("unix:"):
            raise ConfigError(f"token must be set for {self.listen}: whoever reaches an agent owns its sandboxes")
        for field in ("heartbeat_s", "max_sandboxes", "max_starting", "cpu_overcommit", "memory_overcommit"):
            if getattr(self, field) <= 0:
                raise ConfigError(f"{field} ({getattr(self, field)}) must be more than 0")
        if self.clear_every_s < 0:
            raise ConfigError(f"clear_every_s ({self.clear_every_s}) must be 0, for never, or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The fleet's one door."""

    listen: str
    """`http://address:port` or `unix:/path/of/socket`."""
    state: Path
    """An SQLite file; its folder must exist."""
    token: str
    """The fleet's own secret, which agents and gateway share."""
    is_open: bool = False
    """Whether clients without a token are let in, as the project `default`. For a gateway that only friends reach."""
    lost_after_s: float = 30.0
    """A host that has sent no heartbeat for so long is lost, and so is what it runs."""
    orphan_after_s: float = 600.0
    """A sandbox that its host has and nobody here knows is closed after so long."""

    def __post_init__(self) -> None:
        _check_listen(self.listen)
        if not self.token:
            raise ConfigError("token is empty; it must be the secret that the agents have")
        if self.lost_after_s <= 0:
            raise ConfigError(f"lost_after_s ({self.lost_after_s}) must be more than 0")


def _check_listen(listen: str) -> None:
    if not re.fullmatch(r"unix:/.+|http://[^/]+:\d+", listen):
        raise ConfigError(f"listen ({listen!r}) must be http://address:port or unix:/path/of/socket")
