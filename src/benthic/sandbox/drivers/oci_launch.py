"""Starts an OCI runtime on layers stacked for one sandbox, in a mount namespace that nobody else sees.

    /run/benthic/mnt/0, 1, ..   the layers, each an id-mapped clone: their files belong to the sandbox's uids
                     disk       its scratch disk, likewise
                     root       the overlay of them, which becomes the sandbox's root
                     init       init's program
                     moved      the version 2 tree of control groups, which crun refuses beside version 1
                     control    where init makes its socket if it gets none from here
                     stdio      init's input and output, an empty file

The folder is a memory file system in that namespace alone. So the host has no mount of an overlay that could be left
behind: the last process of the sandbox takes it along. The uids of the sandbox could not enter a home anyway.
"""

import os
import select
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benthic.sandbox.drivers.oci import LISTEN_FD
from benthic.sandbox.drivers.scratch import Scratch
from benthic.sandbox.linux import mounts
from benthic.sandbox.linux.namespaces import in_private_mounts

STAGE = Path("/run/benthic/mnt")
ROOT, INIT, MOVED, CONTROL = STAGE / "root", STAGE / "init", STAGE / "moved", STAGE / "control"
START_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OciLaunch:
    """One start of a runtime."""

    layers: Sequence[Path]
    """Lowest first."""
    scratch: Scratch
    init: Path
    id_map: int
    """A user namespace that shows the layers' owners as the sandbox's uids (`namespaces.id_map`)."""
    moved: Path | None = None
    """A mount that the runtime must not see where it is; the command finds it at `MOVED`."""
    control: Path | None = None
    """A folder that the command finds at `CONTROL`."""
    command: Sequence[str]
    """The runtime's, which ends when the container has started."""
    listening: int | None = None
    """A descriptor that becomes init's, as `LISTEN_FD`."""

    def run(self) -> int:
        """Mounts all, runs the command, and blocks until it has ended; its exit status.

        Raises:
            OSError: the kernel refuses a mount; the message names it.
            TimeoutError: the runtime took longer than `START_LIMIT_S` and was killed.
        """
        STAGE.mkdir(mode=0o755, parents=True, exist_ok=True)
        return in_private_mounts(lambda: self._run(self.id_map))

    def _run(self, namespace: int) -> int:
        mounts.mount_tmpfs(STAGE, size_bytes=1 << 16, num_files=16 + len(self.layers))
        lower = [STAGE / str(number) for number in range(len(self.layers))]
        disk = STAGE / "disk"
        for folder in (*lower, disk, ROOT):
            folder.mkdir()
        INIT.touch()
        for layer, folder in zip(self.layers, lower, strict=True):
            mounts.attach(mounts.clone(layer, id_map=namespace, is_read_only=True), folder)
        mounts.attach(mounts.clone(self.scratch.at, id_map=namespace), disk)
        mounts.attach(mounts.clone(self.init, is_read_only=True), INIT)
        # Seen through the clone, the scratch disk's folders have their sandbox's owners.
        upper, work = (disk / folder.name for folder in (self.scratch.upper, self.scratch.work))
        mounts.mount_overlay(lower[::-1], upper, work, ROOT)
        if self.control is not None:
            CONTROL.mkdir()
            mounts.attach(mounts.clone(self.control), CONTROL)
        if self.moved is not None:
            MOVED.mkdir()
            mounts.attach(mounts.clone(self.moved), MOVED)
            mounts.unmount(self.moved)
        return _run(self.command, self.listening)


def _run(command: Sequence[str], listening: int | None) -> int:
    # crun gives stdio to the container's root. So it must be neither a pipe of ours nor the host's own /dev/null.
    stdio = os.open(STAGE / "stdio", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    wanted = {0: stdio, 1: stdio, 2: stdio} | ({} if listening is None else {LISTEN_FD: listening})
    try:
        pid = os.posix_spawn(
            command[0],
            tuple(command),
            {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            file_actions=[(os.POSIX_SPAWN_DUP2, have, want) for want, have in wanted.items()],
            setsid=True,
        )
    finally:
        os.close(stdio)
    return _wait(pid)


def _wait(pid: int) -> int:
    handle = os.pidfd_open(pid)
    try:
        waiting = select.poll()  # unlike select.select, for descriptors above 1023 too
        waiting.register(handle, select.POLLIN)
        ended = waiting.poll(START_LIMIT_S * 1000)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(handle)
    if not ended:
        raise TimeoutError(f"the runtime did not start the container within {START_LIMIT_S:g} s")
    return os.waitstatus_to_exitcode(status)
