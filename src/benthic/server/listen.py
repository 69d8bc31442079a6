"""The listening socket: taken before the model is loaded, so that a busy port costs no minute of loading."""

import logging
import resource
import socket

from benthic.errors import ConfigError
from benthic.server.config import ServerConfig

_PORTS_TRIED = 100
_OTHER_FILES = 256
"""Files that are no clients' connections: of the engine's process, of libraries, of connections that are refused."""

_log = logging.getLogger(__name__)


def bind(config: ServerConfig, *, next_free: bool) -> socket.socket:
    """Take the port without listening on it yet.

    Args:
        config: `host` and `port`.
        next_free: when the port is busy, take the next free one above it instead of failing.

    Raises:
        ConfigError: the port is busy or may not be used, or the host is no address of this machine.
    """
    ports = range(config.port, min(config.port + _PORTS_TRIED, 65536)) if next_free else [config.port]
    problem: OSError | None = None
    for port in ports:
        try:
            return _bind(config.host, port)
        except socket.gaierror as error:
            raise ConfigError(f"host ({config.host}) is no address of this machine: {error.strerror}") from None
        except OSError as error:
            problem = error
    assert problem is not None
    raise ConfigError(
        f"port {config.port} on {config.host} cannot be used: {problem.strerror}; "
        "choose another with --port, or pass --next-free-port"
    )


def allow_connections(wanted: int) -> int:
    """How many connections the process may have open, after asking the system for as many as are wanted."""
    needed = wanted + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):
        allowed = soft
    connections = max(1, allowed - _OTHER_FILES)
    if connections < wanted:
        _log.warning(
            "at most %d connections are served instead of %d: a process may open %d files (see ulimit -n)",
            connections, wanted, allowed,
        )  # fmt: skip
    return connections


def url_of(listener: socket.socket) -> str:
    """The address to type into a client on this machine."""
    host, port = listener.getsockname()[:2]
    reachable = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{reachable}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener
