"""The host's own last word on whether another sandbox fits: counted promises, real memory, and a bounded queue.

The gateway places by heartbeats, which are old by the time they are read; only the host knows what holds now. Nothing
is kept on disk: after a restart the promises are read from the sandboxes that live.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

from benthic.errors import CapacityError
from benthic.sandbox.fleet.status import Capacity, Load
from benthic.sandbox.host import SandboxInfo
from benthic.sandbox.records import SandboxSpec, State


class Admission:
    """Who may start, and when.

    Args:
        capacity: promised at most.
        max_starting: starts under way at once.
        max_waiting: creations that may wait for that.
        min_free_memory_bytes: below this nothing starts.
        free_memory: memory that is free now, in bytes.
        warm: what the machines are made of that are kept ready: no sandboxes yet, but they take their room.
    """

    def __init__(
        self,
        capacity: Capacity,
        *,
        max_starting: int,
        max_waiting: int,
        min_free_memory_bytes: int,
        free_memory: Callable[[], int],
        warm: Callable[[], Sequence[SandboxSpec]] = tuple,
    ) -> None:
        self.capacity = capacity
        self._max_open = max_starting + max_waiting
        self._min_free_memory_bytes = min_free_memory_bytes
        self._free_memory = free_memory
        self._warm = warm
        self._turns = asyncio.Semaphore(max_starting)
        self._alive: dict[str, SandboxSpec] = {}
        self._starting: list[SandboxSpec] = []

    @property
    def load(self) -> Load:
        """What is promised now, starts and machines kept ready included."""
        specs = [*self._alive.values(), *self._starting, *self._warm()]
        return Load(
            cpus=sum(spec.limits.cpus for spec in specs),
            memory_bytes=sum(spec.limits.memory_bytes for spec in specs),
            num_sandboxes=len(specs),
            num_starting=len(self._starting),
        )

    def observe(self, infos: Iterable[SandboxInfo]) -> None:
        """These are the host's sandboxes now."""
        self._alive = {info.id: info.spec for info in infos if info.state is not State.DEAD}

    @asynccontextmanager
    async def start(self, spec: SandboxSpec, count: int = 1) -> AsyncIterator[None]:
        """Holds room for so many sandboxes, and one turn, from now until it is ready (`add`) or failed.

        Raises:
            CapacityError: it does not fit now.
        """
        self._check(spec, count)
        self._starting += [spec] * count
        try:
            async with self._turns:
                self._check_memory()
                yield
        finally:
            for _ in range(count):
                self._starting.remove(spec)

    def add(self, info: SandboxInfo) -> None:
        """It has started."""
        self._alive[info.id] = info.spec

    def remove(self, sandbox_id: str) -> None:
        """It is gone."""
        self._alive.pop(sandbox_id, None)

    def _check(self, spec: SandboxSpec, count: int) -> None:
        load = self.load
        if load.num_starting >= self._max_open:
            raise CapacityError(f"{load.num_starting} sandboxes are starting here; {self._max_open} is the most")
        if load.with_more(spec, count).share_of(self.capacity) > 1:
            raise CapacityError(
                f"the host has promised {load.cpus:g} of {self.capacity.cpus:g} processors, "
                f"{load.memory_bytes >> 20} of {self.capacity.memory_bytes >> 20} MiB and {load.num_sandboxes} of "
                f"{self.capacity.num_sandboxes} sandboxes; {count} of {spec.limits.cpus:g} processors and "
                f"{spec.limits.memory_bytes >> 20} MiB each do not fit"
            )
        self._check_memory()

    def _check_memory(self) -> None:
        free = self._free_memory()
        if free < self._min_free_memory_bytes:
            raise CapacityError(
                f"{free >> 20} MiB of memory are free on the host; {self._min_free_memory_bytes >> 20} must stay free"
            )
