"""One running container, whatever OCI runtime has started it: init's socket, a control group, a scratch disk.

It is known by init's pid and start time on the host, and by the name of its control group.
"""

import asyncio
import errno
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Protocol

from benthic.sandbox.errors import NotSupported
from benthic.sandbox.guest import Guest, JobSetup
from benthic.sandbox.linux import Cgroup, ProcessId
from benthic.sandbox.linux.unix_sockets import short_path
from benthic.sandbox.network import Egress, NamespaceLoopback
from benthic.sandbox.records import CallResult, FunctionCall, Network, Reason, SnapshotRef, Usage


class Owner(Protocol):
    """What a container asks of the driver that made it."""

    async def remove(self, home: Path) -> None:
        """Everything that a home stands for, whatever of it exists."""

    def keep(self, home: Path, name: str) -> SnapshotRef:
        """A snapshot of what a home's container has written; the container stands still."""


class ContainerMachine:
    """One container."""

    ends_at_processes = False
    """Whether a refused process is what ends it: so it is with gVisor."""

    def __init__(self, home: Path, process: ProcessId, group: Cgroup, setup: JobSetup, owner: Owner) -> None:
        """`process` is init, as the host sees it."""
        self.home, self.process, self.group, self.setup = home, process, group, setup
        self._owner = owner
        self._egress: Egress | None = None

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        """A new stream to init; an older one is closed by init."""
        with short_path(self.home / "init.sock") as path:
            return await asyncio.open_unix_connection(path)

    async def open_network(self, guest: Guest, network: Network) -> None:
        """Lets its connections out, as far as the rules go, for as long as this process lives."""
        if not network.rules:
            return
        try:
            self._egress = await Egress.open(NamespaceLoopback(self.process.pid), network)
        except OSError as error:
            # Its former owner in this very process still listens there, with the same rules: it goes on.
            if error.errno != errno.EADDRINUSE:
                raise

    async def freeze(self) -> None:
        """Stops every process where it is."""
        await self.group.stop()

    async def thaw(self) -> None:
        """Lets them go on."""
        self.group.thaw()

    async def snapshot(self, name: str) -> SnapshotRef:
        """Keeps the changed files as a layer, under a name; processes are not kept, and stand still meanwhile."""
        async with self.group.stopped():
            return await asyncio.to_thread(self._owner.keep, self.home, name)

    async def usage(self) -> Usage:
        """Since the start, of the whole sandbox."""
        return self.group.usage()

    async def death(self) -> tuple[Reason, str] | None:
        """Why it is no longer alive, and in words; None while it lives."""
        if self.process.is_alive():
            return None
        kills = self.group.out_of_memory_kills()
        if kills:
            return Reason.OUT_OF_MEMORY, f"the kernel ended {kills} processes for memory, and init has ended"
        if self.ends_at_processes and self.group.refused_processes():
            return Reason.OUT_OF_PROCESSES, "it asked for more processes than it may have, and its kernel has ended"
        return Reason.CRASHED, "its first process has ended"

    async def out_of_memory_kills(self) -> int:
        """How many processes the kernel has ended for memory so far."""
        return self.group.out_of_memory_kills()

    async def call(self, call: FunctionCall) -> CallResult:
        """Not by a warm worker: the host runs a Python of the image."""
        raise NotSupported("containers keep no warm Python; call by the image's own, or take kind='function'")

    async def destroy(self) -> None:
        """Ends every process and removes every resource, in any state, as often as called."""
        if self._egress is not None:
            await self._egress.close()
        await self._owner.remove(self.home)
