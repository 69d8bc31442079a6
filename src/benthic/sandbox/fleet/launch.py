"""Runs an agent or a gateway in this process until it is asked to end.

SIGTERM ends either at once and cleanly; kill -9 does no more harm, only the clients' next attempts come a little later.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from benthic.errors import ConfigError
from benthic.sandbox.driver import Driver
from benthic.sandbox.drivers.warm import WarmDriver
from benthic.sandbox.fleet.agent import Agent, agent_app
from benthic.sandbox.fleet.config import AgentConfig, GatewayConfig
from benthic.sandbox.fleet.gateway import Gateway
from benthic.sandbox.fleet.gateway_routes import gateway_app
from benthic.sandbox.fleet.serving import serve
from benthic.sandbox.garbage import lines
from benthic.sandbox.local import STATE_ROOT, LocalHost
from benthic.sandbox.probe import probe
from benthic.telemetry import START

_log = logging.getLogger(START)


async def run_agent(config: AgentConfig, drivers: Sequence[Driver]) -> None:
    """Owns the sandboxes of a state folder, those that an earlier agent left behind first of all.

    Raises:
        ConfigError: another agent has the folder, or the address cannot be used.
    """
    root = (config.state_root or STATE_ROOT).expanduser()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _held(root / "agent.lock"):
        host = LocalHost(root, drivers, trajectories=config.trajectories, max_starting=config.max_starting)
        adopted = await host.open(adopts=True)
        _log.info("host %s: %d sandboxes taken over; listening on %s", config.name, len(adopted), config.listen)
        agent = Agent(
            host,
            config,
            trajectories=_identity(host.folders.trajectories),
            has=lambda sandbox_id: host.folders.home(sandbox_id).exists(),
            warm=lambda: [spec for driver in drivers if isinstance(driver, WarmDriver) for spec in driver.ready],
            evict=lambda sandbox_id: evict(host, sandbox_id),
        )
        chores = [asyncio.create_task(_probe(agent, drivers)), asyncio.create_task(_clear(agent, host))]
        try:
            await serve(agent_app(agent), config.listen)
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await host.leave()


async def _probe(agent: Agent, drivers: Sequence[Driver]) -> None:
    agent.probed(await probe(drivers))


async def _clear(agent: Agent, host: LocalHost) -> None:
    """Removes what nothing needs, now and then. What cannot be removed is tried again the next time."""
    while agent.config.clear_every_s:
        await asyncio.sleep(agent.config.clear_every_s)
        try:
            garbage = await host.clear_garbage()
        except Exception as error:  # noqa: BLE001 - the next time may go well
            _log.warning("garbage was not cleared: %r", error)
            continue
        agent.metrics.cleared.inc(garbage.freed_bytes)
        if said := lines(garbage):
            _log.info("garbage is cleared: %s", "; ".join(said))
        for doubt in garbage.doubts:
            _log.warning("%s", doubt)


async def evict(host: LocalHost, sandbox_id: str) -> None:
    """Ends the machine that is left here of a sandbox whose log another host writes now."""
    record, home = host.folders.load(sandbox_id), host.folders.home(sandbox_id)
    if record is None:
        return
    for driver in host.drivers:
        machine = await driver.adopt(record.spec, home) if driver.kind == record.spec.kind else None
        if machine is not None:
            await machine.destroy()
    await asyncio.to_thread(shutil.rmtree, home, True)


async def run_gateway(config: GatewayConfig) -> None:
    """Is the door of a fleet.

    Raises:
        ConfigError: another gateway has the state file, or the address cannot be used.
    """
    with _held(config.state.with_name(config.state.name + ".lock")):
        gateway = Gateway(config)
        _log.info("gateway of %d hosts; listening on %s", len(gateway.hosts.all()), config.listen)
        await serve(gateway_app(gateway), config.listen)


def fleet_token(path: Path) -> str:
    """The fleet's own secret from a file, which is made, readable by its owner alone, if it is not there.

    Raises:
        ConfigError: it can be read by others, or is empty.
    """
    _make_once(path, secrets.token_urlsafe(32) + "\n")
    if path.stat().st_mode & 0o077:
        raise ConfigError(f"{path} can be read by others (mode {path.stat().st_mode & 0o777:o}); chmod it to 600")
    token = path.read_text().strip()
    if not token:
        raise ConfigError(f"{path} is empty; it must hold the fleet's secret")
    return token


def _make_once(path: Path, text: str) -> None:
    """Whole, or not at all, and by one process only."""
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    draft.touch(mode=0o600)
    draft.write_text(text)
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """A lock that ends with this process, however it ends."""
    with open(path, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{path} is held by another process; each needs a folder or file of its own") from None
        yield


def _identity(folder: Path) -> str:
    """The same words for every host that sees the same folder, and for no other."""
    path = folder / "identity"
    _make_once(path, secrets.token_hex(8))
    return path.read_text()
