"""One running jail: init's socket, a control group, and a warm Python once functions are called."""

import asyncio
from asyncio import StreamReader, StreamWriter
from pathlib import Path

from benthic.sandbox.drivers.container_machine import Owner
from benthic.sandbox.drivers.zygote_client import ZygoteClient
from benthic.sandbox.errors import NotSupported
from benthic.sandbox.guest import Guest, JobSetup
from benthic.sandbox.linux import Cgroup, ProcessId
from benthic.sandbox.linux.unix_sockets import short_path
from benthic.sandbox.records import CallResult, FunctionCall, Network, Reason, SnapshotRef, Usage

SOCKET = "init.sock"


class FunctionMachine:
    """One jail. It is known by init's pid and start time on the host, and by the name of its control group."""

    def __init__(
        self,
        home: Path,
        process: ProcessId,
        group: Cgroup | None,
        setup: JobSetup,
        zygote: ZygoteClient,
        owner: Owner,
    ) -> None:
        """`process` is init as the host sees it."""
        self.home, self.process, self.group, self.setup = home, process, group, setup
        self._zygote, self._owner = zygote, owner

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        """A new stream to init; an older one is closed by init."""
        with short_path(self.home / SOCKET) as path:
            return await asyncio.open_unix_connection(path)

    async def open_network(self, guest: Guest, network: Network) -> None:
        """There is none; who asks for one is refused before."""
        assert not network.rules

    async def freeze(self) -> None:
        """Stops every process where it is.

        Raises:
            NotSupported: without control groups.
        """
        await self._needed_group("be paused").stop()

    async def thaw(self) -> None:
        """Lets them go on."""
        self._needed_group("be paused").thaw()

    async def snapshot(self, name: str) -> SnapshotRef:
        """Keeps what lies in /work, under a name; processes stand still meanwhile, and nothing else is kept.

        Raises:
            NotSupported: without control groups, or where the jail has no host uid of its own.
        """
        group = self._needed_group("be kept")
        if self.setup.uid == 0:
            raise NotSupported(f"function sandboxes keep no snapshots, such as {name!r}, unless their host is root")
        async with group.stopped():
            return await asyncio.to_thread(self._owner.keep, self.home, name)

    async def usage(self) -> Usage:
        """Since the start, of the whole sandbox."""
        return Usage() if self.group is None else self.group.usage()

    async def death(self) -> tuple[Reason, str] | None:
        """Why it is no longer alive, and in words; None while it lives."""
        if self.process.is_alive():
            return None
        if kills := await self.out_of_memory_kills():
            return Reason.OUT_OF_MEMORY, f"the kernel ended {kills} processes for memory, and init has ended"
        return Reason.CRASHED, "its first process has ended"

    async def out_of_memory_kills(self) -> int:
        """How many processes the kernel has ended for memory so far."""
        return 0 if self.group is None else self.group.out_of_memory_kills()

    async def call(self, call: FunctionCall) -> CallResult:
        """Runs a Python function in a fork of a warm interpreter, with empty folders of its own.

        Raises:
            NotSupported: the sandbox's image has no Python.
        """
        return await self._zygote.call(call)

    async def destroy(self) -> None:
        """Ends every process and removes every resource, in any state, as often as called."""
        await self._owner.remove(self.home)

    def _needed_group(self, what: str) -> Cgroup:
        if self.group is None:
            raise NotSupported(f"function sandboxes cannot {what} without control groups; run the host as root")
        return self.group
