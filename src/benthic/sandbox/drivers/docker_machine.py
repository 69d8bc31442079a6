"""One container of a Docker daemon: like any other, but its control group is the daemon's and goes with it."""

from pathlib import Path
from typing import Protocol

from benthic.sandbox.drivers.container_machine import ContainerMachine, Owner
from benthic.sandbox.guest import JobSetup
from benthic.sandbox.linux import Cgroup, ProcessId
from benthic.sandbox.records import Reason


class DockerOwner(Owner, Protocol):
    """What it asks of its driver."""

    async def out_of_memory(self, home: Path) -> bool:
        """Whether the daemon has seen the kernel end one of its processes for memory."""


class DockerMachine(ContainerMachine):
    """See the module."""

    def __init__(self, home: Path, process: ProcessId, group: Cgroup, setup: JobSetup, owner: DockerOwner) -> None:
        super().__init__(home, process, group, setup, owner)
        self._driver = owner

    async def death(self) -> tuple[Reason, str] | None:
        """Why it is no longer alive, and in words; None while it lives."""
        found = await super().death()
        if found is not None and found[0] is Reason.CRASHED and await self._driver.out_of_memory(self.home):
            return Reason.OUT_OF_MEMORY, "the kernel ended its processes for memory, init among them"
        return found
