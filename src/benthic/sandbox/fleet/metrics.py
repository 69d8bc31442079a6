"""What agents and gateways count, in the Prometheus text format, each in a registry of its own."""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from benthic.sandbox.fleet.status import Load
from benthic.sandbox.host import SandboxInfo
from benthic.sandbox.records import SandboxSpec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX = "benthic_sandbox_"
_START_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class AgentMetrics:
    """Figures of one host."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.start_s = Histogram(
            _PREFIX + "start_seconds", "Asked for to ready", ["kind"], buckets=_START_S, registry=registry
        )
        self.starts_failed = Counter(
            _PREFIX + "starts_failed", "Sandboxes that did not come up", ["kind", "stage"], registry=registry
        )
        self.cleared = Counter(_PREFIX + "cleared_bytes", "Garbage removed", registry=registry)
        self._alive = Gauge(_PREFIX + "alive", "Sandboxes by kind and state", ["kind", "state"], registry=registry)
        self._cpus = Gauge(_PREFIX + "promised_cpus", "Processors promised", registry=registry)
        self._memory = Gauge(_PREFIX + "promised_memory_bytes", "Memory promised", registry=registry)
        self._starting = Gauge(_PREFIX + "starting", "Starts under way or waiting", registry=registry)
        self._warm = Gauge(_PREFIX + "warm", "Machines kept ready, by kind", ["kind"], registry=registry)

    def show(self, infos: Iterable[SandboxInfo], load: Load, warm: Sequence[SandboxSpec] = ()) -> None:
        """These are the sandboxes, the promises and the machines kept ready now."""
        self._alive.clear()
        for (kind, state), number in Tally((info.spec.kind, info.state.value) for info in infos).items():
            self._alive.labels(kind, state).set(number)
        self._cpus.set(load.cpus)
        self._memory.set(load.memory_bytes)
        self._starting.set(load.num_starting)
        self._warm.clear()
        for kind, number in Tally(spec.kind for spec in warm).items():
            self._warm.labels(kind).set(number)

    def render(self) -> bytes:
        """The text."""
        return generate_latest(self.registry)


class GatewayMetrics:
    """Figures of the fleet's door."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter(
            _PREFIX + "gateway_requests", "Requests answered", ["route", "status"], registry=registry
        )
        self.placed = Counter(_PREFIX + "gateway_placed", "Sandboxes placed", ["host"], registry=registry)
        self.refused = Counter(_PREFIX + "gateway_refused", "Creations refused", ["by"], registry=registry)
        self.hosts_lost = Counter(_PREFIX + "gateway_hosts_lost", "Hosts that fell silent", registry=registry)
        self.sandboxes_lost = Counter(_PREFIX + "gateway_sandboxes_lost", "Sandboxes lost with them", registry=registry)
        self.rebuilt = Counter(_PREFIX + "gateway_rebuilt", "Sandboxes made anew", ["outcome"], registry=registry)
        self._hosts = Gauge(_PREFIX + "gateway_hosts", "Hosts by state", ["state"], registry=registry)
        self._sandboxes = Gauge(_PREFIX + "gateway_sandboxes", "Sandboxes by state", ["state"], registry=registry)

    def show(self, hosts: dict[str, int], sandboxes: dict[str, int]) -> None:
        """Hosts and sandboxes by state now."""
        for gauge, counts in ((self._hosts, hosts), (self._sandboxes, sandboxes)):
            gauge.clear()
            for state, number in counts.items():
                gauge.labels(state).set(number)

    def render(self) -> bytes:
        """The text."""
        return generate_latest(self.registry)
