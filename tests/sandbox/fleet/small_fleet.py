"""A gateway and a few agents over fake hosts, or real ones, in one process, on unix sockets."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benthic.sandbox.fleet.agent import Agent, agent_app
from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.fleet.config import AgentConfig, GatewayConfig
from benthic.sandbox.fleet.gateway import Gateway
from benthic.sandbox.fleet.gateway_routes import gateway_app
from benthic.sandbox.fleet.serving import serve
from benthic.sandbox.fleet.status import Capacity
from benthic.sandbox.host import Host
from tests.sandbox.fleet.fake_host import FakeHost

FLEET_TOKEN = "the fleet's own"
ROOM = Capacity(cpus=1000.0, memory_bytes=1 << 50, num_sandboxes=1000)


class SmallFleet:
    def __init__(
        self,
        folder: Path,
        *,
        lost_after_s: float,
        orphan_after_s: float,
        capacity: Capacity,
        real: Mapping[str, Host] | None = None,
    ) -> None:
        self.folder, self.capacity = folder, capacity
        self.lost_after_s, self.orphan_after_s = lost_after_s, orphan_after_s
        self.hosts: dict[str, FakeHost] = {}
        self.real = real or {}
        self.agents: dict[str, Agent] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.gateway: Gateway | None = None
        self.stack = AsyncExitStack()

    @property
    def url(self) -> str:
        return f"unix:{self.folder}/gateway.sock"

    @property
    def state(self) -> Gateway:
        assert self.gateway is not None
        return self.gateway

    def agent_url(self, name: str) -> str:
        return f"unix:{self.folder}/{name}.sock"

    async def start_gateway(self) -> None:
        config = GatewayConfig(
            listen=self.url,
            state=self.folder / "gateway.sqlite",
            token=FLEET_TOKEN,
            lost_after_s=self.lost_after_s,
            orphan_after_s=self.orphan_after_s,
        )
        self.gateway = Gateway(config, random.Random(7))
        self.tasks["gateway"] = asyncio.create_task(serve(gateway_app(self.gateway), self.url))
        await self._answers(self.url)

    async def start_agent(self, name: str, host: FakeHost | None = None, *, trajectories: str = "") -> None:
        owner = self.real.get(name)
        if owner is None:
            owner = self.hosts[name] = host or self.hosts.get(name) or FakeHost(name[-1])
        config = AgentConfig(
            listen=self.agent_url(name),
            name=name,
            gateway=self.url,
            token=FLEET_TOKEN,
            heartbeat_s=0.05,
            max_starting=4,
            min_free_memory_bytes=0,
        )
        agent = self.agents[name] = Agent(owner, config, capacity=self.capacity, trajectories=trajectories)
        self.tasks[name] = asyncio.create_task(serve(agent_app(agent), self.agent_url(name)))
        await self._answers(self.agent_url(name))
        await self.until(lambda: any(e.status.incarnation == agent.once.incarnation for e in self.state.hosts.all()))

    async def stop(self, name: str) -> None:
        """As hard as a process can be stopped within one: its task is cancelled, nothing is said to anybody."""
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def client(self, token: str | None = None, *, patience_s: float = 5.0, **options: object) -> RemoteHost:
        host = RemoteHost(self.url, token=token or self.state.projects.add_token("p"), patience_s=patience_s, **options)  # type: ignore[arg-type]
        self.stack.push_async_callback(host.aclose)
        return host

    async def until(self, is_so: "object", timeout_s: float = 5.0) -> None:
        assert callable(is_so)
        async with asyncio.timeout(timeout_s):
            while not is_so():
                await asyncio.sleep(0.01)

    async def _answers(self, url: str) -> None:
        async with RemoteHost(url, token=FLEET_TOKEN, patience_s=5.0) as host:
            await host.connection.json("GET", "/health")


@asynccontextmanager
async def small_fleet(
    folder: Path,
    names: tuple[str, ...] = ("h1",),
    *,
    lost_after_s: float = 30.0,
    orphan_after_s: float = 0.3,
    capacity: Capacity = ROOM,
    hosts: Mapping[str, Host] | None = None,
) -> AsyncIterator[SmallFleet]:
    fleet = SmallFleet(folder, lost_after_s=lost_after_s, orphan_after_s=orphan_after_s, capacity=capacity, real=hosts)
    try:
        await fleet.start_gateway()
        for name in names:
            await fleet.start_agent(name)
        yield fleet
    finally:
        await fleet.stack.aclose()
        for name in list(fleet.tasks):
            await fleet.stop(name)
