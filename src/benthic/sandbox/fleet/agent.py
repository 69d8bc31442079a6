"""The agent of one host: owns its sandboxes, admits new ones, answers calls, and tells the gateway that it lives.

It can be killed at any moment. Sandboxes, their running commands and their logs live on without it; the next agent of
the same state folder adopts them.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from fastapi import FastAPI, Response

from benthic.errors import BenthicError
from benthic.sandbox.errors import StartFailed, TokenRefused, TrajectoryHeld
from benthic.sandbox.fleet.access import FleetAccess
from benthic.sandbox.fleet.admission import Admission
from benthic.sandbox.fleet.config import AgentConfig
from benthic.sandbox.fleet.connection import Connection
from benthic.sandbox.fleet.host_routes import host_router
from benthic.sandbox.fleet.metrics import CONTENT_TYPE, AgentMetrics
from benthic.sandbox.fleet.once import Once
from benthic.sandbox.fleet.plain_routes import plain_router
from benthic.sandbox.fleet.responses import refuse_in_words
from benthic.sandbox.fleet.status import Capacity, HostStatus, SandboxStatus
from benthic.sandbox.fleet.terminal import terminal_router
from benthic.sandbox.host import Host, Rebuilt, SandboxInfo
from benthic.sandbox.linux.memory import free_memory_bytes, memory_info
from benthic.sandbox.records import ProbeResult, SandboxSpec, SnapshotRef
from benthic.sandbox.wire import encode

_log = logging.getLogger(__name__)


class Agent:
    """One host's sandboxes, with admission.

    Args:
        host: owns them.
        config: name, limits, where to send heartbeats.
        capacity: promised at most; None is worked out from this machine.
        free_memory: in bytes, now.
        trajectories: names the folder of the host's trajectories, where hosts share one.
        has: whether a sandbox is this host's own, and not one of those that it shares a folder with.
        warm: what the machines are made of that are kept ready for the next starts.
        evict: ends what is left here of a sandbox that another host has gone on with.
    """

    def __init__(
        self,
        host: Host,
        config: AgentConfig,
        *,
        capacity: Capacity | None = None,
        free_memory: Callable[[], int] | None = None,
        trajectories: str = "",
        has: Callable[[str], bool] = lambda _: True,
        warm: Callable[[], Sequence[SandboxSpec]] = tuple,
        evict: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.host, self.config, self.once = host, config, Once()
        self.metrics = AgentMetrics()
        self._drivers: tuple[ProbeResult, ...] = ()
        self._trajectories, self._has, self._evict = trajectories, has, evict
        self._free_memory = free_memory or free_memory_bytes
        self.admission = Admission(
            capacity or capacity_of_machine(config),
            max_starting=config.max_starting,
            max_waiting=config.max_waiting,
            min_free_memory_bytes=config.min_free_memory_bytes,
            free_memory=self._free_memory,
            warm=warm,
        )
        self._warm = warm

    async def create(
        self, spec: SandboxSpec, *, key: str | None = None, snapshot: SnapshotRef | None = None
    ) -> SandboxInfo:
        """As the host does, if there is room.

        Raises:
            CapacityError: there is none now.
        """
        started = time.monotonic()
        async with self.admission.start(spec):
            try:
                info = await self.host.create(spec, key=key, snapshot=snapshot)
            except StartFailed as error:
                self.metrics.starts_failed.labels(spec.kind, error.stage or "unknown").inc()
                raise
            self.admission.add(info)
        self.metrics.start_s.labels(spec.kind).observe(time.monotonic() - started)
        return info

    async def fork(self, sandbox_id: str, count: int, *, seq: int | None = None) -> list[SandboxInfo]:
        """As the host does, if there is room for all."""
        spec = (await self.host.info(sandbox_id)).spec
        async with self.admission.start(spec, count):  # one turn for all of them
            forks = await self.host.fork(sandbox_id, count, seq=seq)
            for info in forks:
                self.admission.add(info)
        return forks

    async def branch(self, sandbox_id: str, seq: int, *, key: str | None = None) -> SandboxInfo:
        """As the host does, if there is room."""
        async with self.admission.start((await self.host.info(sandbox_id)).spec):
            info = await self.host.branch(sandbox_id, seq, key=key)
            self.admission.add(info)
        return info

    async def rebuild(self, sandbox_id: str, *, may_rerun: bool = False) -> Rebuilt:
        """As the host does, if there is room."""
        info = await self.host.info(sandbox_id)
        async with self.admission.start(info.spec):
            rebuilt = await self.host.rebuild(sandbox_id, may_rerun=may_rerun)
            self.admission.add(info)
        return rebuilt

    async def close(self, sandbox_id: str) -> None:
        """As the host does."""
        await self.host.close(sandbox_id)
        self.admission.remove(sandbox_id)

    async def status(self) -> HostStatus:
        """A heartbeat, from what is true now."""
        infos = [info for info in await self.host.sandboxes() if self._has(info.id)]
        self.admission.observe(infos)
        self.metrics.show(infos, self.admission.load, self._warm())
        return HostStatus(
            name=self.config.name,
            url=self.config.url or self.config.listen,
            incarnation=self.once.incarnation,
            capacity=self.admission.capacity,
            load=self.admission.load,
            free_memory_bytes=self._free_memory(),
            drivers=self._drivers,
            trajectories=self._trajectories,
            sandboxes=tuple(
                SandboxStatus(id=info.id, state=info.state, reason=info.reason, detail=info.detail) for info in infos
            ),
        )

    def probed(self, results: Sequence[ProbeResult]) -> None:
        """This is what works here; until it is known, the gateway may try everything."""
        self._drivers = tuple(results)

    async def beat(self) -> None:
        """Sends heartbeats for ever, and closes what the gateway says is nobody's any more."""
        assert self.config.gateway is not None
        gateway = Connection(self.config.gateway, token=self.config.token, patience_s=0.0)
        said: str | None = "not yet"
        try:
            while True:
                try:
                    body = encode(await self.status())
                    answer = await gateway.json("POST", f"/hosts/{self.config.name}/heartbeat", body)
                    for sandbox_id in answer["close"]:
                        await self._close_orphan(sandbox_id)
                    problem = None
                except TokenRefused:
                    problem = "it refuses this host's token; both need the same: copy its file fleet-token here"
                except BenthicError as error:  # the gateway may be down; sandboxes go on without it
                    problem = str(error)
                if problem != said:  # once each, and not with every beat
                    _log.warning("gateway %s: %s", self.config.gateway, problem or "it knows this host")
                    said = problem
                await asyncio.sleep(self.config.heartbeat_s)
        finally:
            await gateway.aclose()

    async def _close_orphan(self, sandbox_id: str) -> None:
        _log.warning("sandbox %s is closed: the gateway says that it is nobody's", sandbox_id)
        try:
            await self.close(sandbox_id)
        except TrajectoryHeld:
            if self._evict is not None:
                await self._evict(sandbox_id)
        except BenthicError as error:
            _log.warning("sandbox %s could not be closed: %s", sandbox_id, error)


def agent_app(agent: Agent) -> FastAPI:
    """The HTTP application of one agent."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await agent.status()
        beat = asyncio.create_task(agent.beat()) if agent.config.gateway else None
        yield
        if beat is not None:
            beat.cancel()
            await asyncio.gather(beat, return_exceptions=True)
        await agent.once.aclose()

    app = FastAPI(title="Benthic sandbox agent", lifespan=lifespan)
    app.include_router(host_router(agent.host, agent, agent.once))
    app.include_router(plain_router(agent.host, agent.once))
    app.include_router(terminal_router(lambda socket, sandbox_id: agent.host))
    refuse_in_words(app)
    app.add_middleware(FleetAccess, token=agent.config.token, incarnation=agent.once.incarnation)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"name": agent.config.name, "incarnation": agent.once.incarnation}

    @app.get("/metrics")
    async def metrics() -> Response:
        await agent.status()
        return Response(agent.metrics.render(), media_type=CONTENT_TYPE)

    return app


def capacity_of_machine(config: AgentConfig) -> Capacity:
    """What this machine promises at most."""
    return Capacity(
        cpus=(os.cpu_count() or 1) * config.cpu_overcommit,
        memory_bytes=int(memory_info("MemTotal") * config.memory_overcommit),
        num_sandboxes=config.max_sandboxes,
    )
