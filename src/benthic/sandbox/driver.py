"""What a substrate must offer. Everything else (logging, limits of time, truncation, leases) is done once above.

A driver brings up a root file system, isolation and limits with Benthic's own init (`guest/`) as first process, and
gives a byte stream to it. Commands, files, terminals go through that stream, the same way on every kind; what a
driver knows by its own means (why something died, what it used) it answers itself, since init lives with the agent.

A machine outlives the process that started it: everything needed to find it again lies in its home folder, written
before the resource it names is made, so that `adopt` can take it over and `reconcile` can sweep it away.
"""

from asyncio import StreamReader, StreamWriter
from collections.abc import Container
from pathlib import Path
from typing import Protocol

from benthic.sandbox.guest import Guest, JobSetup
from benthic.sandbox.records import (
    CallResult,
    FunctionCall,
    Kind,
    Network,
    ProbeResult,
    Reason,
    SandboxSpec,
    SnapshotRef,
    Usage,
)


class Machine(Protocol):
    """One started sandbox, as its driver sees it."""

    home: Path
    setup: JobSetup
    """What must hold for its commands: who they are, limits of each process, the filter of system calls.

    The host adds what the spec says (environment, folder, output) and gives it to init.
    """

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        """A new stream to init; an older one is closed by init."""

    async def open_network(self, guest: Guest, network: Network) -> None:
        """Lets its connections out, as far as the rules go, for as long as this process lives.

        Args:
            guest: a client of its init, which has just come.

        Raises:
            OSError: it has ended, or a socket of its is taken.
        """

    async def freeze(self) -> None:
        """Stops every process where it is."""

    async def thaw(self) -> None:
        """Lets them go on."""

    async def snapshot(self, name: str) -> SnapshotRef:
        """Keeps the file system (virtual machines: memory too) in the store; the sandbox goes on.

        It freezes and thaws what it must by itself; `seq` of the reference is filled in by the host.

        Raises:
            NotSupported: by this kind.
        """

    async def usage(self) -> Usage:
        """Since the start, of the whole sandbox."""

    async def death(self) -> tuple[Reason, str] | None:
        """Why it is no longer alive, and in words; None while it lives."""

    async def out_of_memory_kills(self) -> int:
        """How many processes the kernel has ended for memory so far."""

    async def call(self, call: FunctionCall) -> CallResult:
        """Runs a Python function in a warm worker.

        Raises:
            NotSupported: by this kind; the host then runs a Python of the image for it.
        """

    async def destroy(self) -> None:
        """Ends every process and removes every resource, in any state, as often as called."""


class Driver(Protocol):
    """One way to make sandboxes of a kind."""

    @property
    def kind(self) -> Kind:
        """What it makes."""

    @property
    def name(self) -> str:
        """Its own among those of its kind."""

    async def probe(self) -> ProbeResult:
        """Starts one, runs `true`, and ends it; never raises."""

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> Machine:
        """Makes a sandbox whose home is an empty folder.

        Raises:
            StartFailed: with the stage that failed; nothing is left behind.
        """

    async def adopt(self, spec: SandboxSpec, home: Path) -> Machine | None:
        """The machine of a home folder if it still lives, else None; either way nothing is started."""

    async def remove(self, home: Path) -> None:
        """Everything that this driver has made for a home, whatever of it exists; the folder itself stays."""

    async def reconcile(self, homes: Container[Path]) -> list[str]:
        """Removes every resource of this driver that belongs to none of these homes; says what went.

        Args:
            homes: asked about a home once something of it was found, and not before: sandboxes come to be meanwhile.
        """
