"""What a host says of itself: what it can run, how much, and how full it is. A heartbeat carries it to the gateway."""

from dataclasses import dataclass, field

from benthic.sandbox.records import ProbeResult, Reason, SandboxSpec, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a host promises at most."""

    cpus: float
    memory_bytes: int
    num_sandboxes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What it has promised."""

    cpus: float = 0.0
    memory_bytes: int = 0
    num_sandboxes: int = 0
    num_starting: int = 0

    def with_more(self, spec: SandboxSpec, count: int = 1) -> "Load":
        """After so many more sandboxes."""
        return Load(
            cpus=self.cpus + count * spec.limits.cpus,
            memory_bytes=self.memory_bytes + count * spec.limits.memory_bytes,
            num_sandboxes=self.num_sandboxes + count,
            num_starting=self.num_starting + count,
        )

    def share_of(self, capacity: Capacity) -> float:
        """How full, by the resource that is nearest its end; above 1 it does not fit."""
        return max(
            self.cpus / capacity.cpus,
            self.memory_bytes / capacity.memory_bytes,
            self.num_sandboxes / capacity.num_sandboxes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxStatus:
    """One sandbox in a heartbeat."""

    id: str
    state: State
    reason: Reason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStatus:
    """One heartbeat."""

    name: str
    url: str
    """Where the gateway reaches its agent."""
    incarnation: str
    capacity: Capacity
    load: Load = field(default_factory=Load)
    free_memory_bytes: int = 0
    drivers: tuple[ProbeResult, ...] = ()
    """What was probed when the agent started; empty: everything is tried."""
    sandboxes: tuple[SandboxStatus, ...] = ()
    trajectories: str = ""
    """Names the folder of its trajectories: hosts that share one can make each other's sandboxes again."""

    def can_run(self, spec: SandboxSpec) -> bool:
        """Whether a driver for this spec works here."""
        return not self.drivers or any(
            probe.is_working and probe.kind == spec.kind and spec.driver in (None, probe.driver)
            for probe in self.drivers
        )
