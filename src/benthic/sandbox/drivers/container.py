"""Containers by crun or runc: layers under overlayfs, a user namespace over host uids of their own, a control group.

Root inside owns its files and is nobody on the host. Nothing of the host is mounted inside but init's program. The
network is empty, unless the sandbox's rules let its connections out through the host's proxy (`network/`).

A container is found again by its first process (pid and start time, in its home) and swept by the names of its
control group, its mounts and its claims, all of which carry its id.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from uuid import uuid4

from benthic.sandbox.drivers import oci
from benthic.sandbox.drivers.oci_launch import INIT, ROOT, OciLaunch
from benthic.sandbox.drivers.scratch import Scratch
from benthic.sandbox.errors import SandboxError, StartFailed
from benthic.sandbox.guest import build_init
from benthic.sandbox.images import TINY, Store, ensure_tiny
from benthic.sandbox.linux import Cgroup, HomeState, Launch, ProcessId, UidPool, find_hierarchy, group_name, root_tag
from benthic.sandbox.linux import mounts
from benthic.sandbox.records import Kind, Limits, ProbeResult, Reason, SandboxSpec, SnapshotRef, Usage

Runtime = Literal["crun", "runc"]
FREEZE_LIMIT_S = 10.0
INIT_MEMORY_BYTES = 4 << 20
"""Allowed on top of the sandbox's memory, for init and its tables."""
INIT_PROCESSES = 2


@dataclass(frozen=True, slots=True)
class ContainerMachine:
    """One container."""

    home: Path
    process: ProcessId
    """Init, as the host sees it."""
    group: Cgroup
    driver: "ContainerDriver"

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        """A new stream to init; an older one is closed by init."""
        with short_path(self.home / "init.sock") as path:
            return await asyncio.open_unix_connection(path)

    async def freeze(self) -> None:
        """Stops every process where it is."""
        self.group.freeze()
        deadline = time.monotonic() + FREEZE_LIMIT_S
        while not self.group.is_frozen():
            if time.monotonic() > deadline:
                self.group.thaw()
                raise SandboxError(f"sandbox {self.home.name} did not stop within {FREEZE_LIMIT_S:g} s; try again")
            await asyncio.sleep(0.001)

    async def thaw(self) -> None:
        """Lets them go on."""
        self.group.thaw()

    async def snapshot(self, name: str) -> SnapshotRef:
        """Keeps the changed files as a layer; processes are not kept. The container stands still meanwhile."""
        raise NotImplementedError

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
        return Reason.CRASHED, "its first process has ended"

    async def out_of_memory_kills(self) -> int:
        """How many processes the kernel has ended for memory so far."""
        return self.group.out_of_memory_kills()

    async def expose(self, port: int, path: Path) -> None:
        """Forwards a unix socket on the host to a TCP port on the sandbox's loopback."""
        raise NotImplementedError

    async def destroy(self) -> None:
        """Ends every process and removes every resource, in any state, as often as called."""
        await self.driver.remove(self.home)


class ContainerDriver:
    """Makes containers with one runtime, for one state root."""

    kind: Kind = "container"

    def __init__(self, root: Path, store: Store, *, runtime: Runtime = "crun", uids: UidPool | None = None) -> None:
        """`root` is the state root, in whose `homes` the homes lie."""
        self.name = runtime
        self._root, self._store, self._uids = root, store, uids or UidPool()
        self._hierarchy = find_hierarchy()

    async def probe(self) -> ProbeResult:
        """Starts one, runs `true`, and ends it; never raises."""
        raise NotImplementedError

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> ContainerMachine:
        """Makes a sandbox whose home is an empty folder.

        Raises:
            StartFailed: with the stage that failed; nothing is left behind.
        """
        stages = Stages(f"container {home.name}")
        try:
            return await asyncio.to_thread(self._start, spec, home, snapshot, stages)
        except BaseException as error:
            await self.remove(home)
            if isinstance(error, SandboxError | OSError | LookupError):
                raise stages.failure(error) from error
            raise

    async def adopt(self, spec: SandboxSpec, home: Path) -> ContainerMachine | None:
        """The machine of a home folder if it still lives, else None; either way nothing is started."""
        state = HomeState(home).load()
        if state.get("driver") != self.name or "pid" not in state:
            return None
        process = ProcessId(state["pid"], state["start_ticks"])
        return ContainerMachine(home, process, self._group(home), self) if process.is_alive() else None

    async def reconcile(self, homes: Sequence[Path]) -> list[str]:
        """Removes every resource of this driver that belongs to none of these homes; says what went."""
        raise NotImplementedError

    async def remove(self, home: Path) -> None:
        """Everything that a home stands for, whatever of it exists."""
        if not await self._group(home).remove():
            raise SandboxError(f"processes of sandbox {home.name} do not end; {self._group(home).pids()} are left")
        await asyncio.to_thread(self._remove_files, home)

    def _start(
        self, spec: SandboxSpec, home: Path, snapshot: SnapshotRef | None, stages: "Stages"
    ) -> ContainerMachine:
        state = HomeState(home)
        state.record(driver=self.name)
        with stages.stage("init"):
            init = build_init()
        with stages.stage("layers"):
            layers = self._store.mount(owner_of(home), self._digests(spec, snapshot))
        with stages.stage("uids"):
            first_uid = self._uids.acquire(home)
            state.record(first_uid=first_uid)
        with stages.stage("group"):
            group = self._group(home)
            group.create(_with_init(spec.limits), extra_memory_bytes=INIT_MEMORY_BYTES)
        with stages.stage("disk"):
            scratch = Scratch(home)
            scratch.create(spec.limits, self._store.root / "derived" / "disks")
        with stages.stage("runtime"):
            config = oci.bundle_config(
                root=ROOT,
                init=INIT,
                arguments=("--listen-fd", str(oci.LISTEN_FD)),
                first_uid=first_uid,
                num_uids=self._uids.size,
                limits=spec.limits,
                cgroup=f"/benthic/{group.name}" if self.name == "runc" else None,
            )
            oci.write_bundle(home / "bundle", config)
            process = self._launch(home, group, layers, scratch, init, first_uid)
            state.record(pid=process.pid, start_ticks=process.start_ticks)
        return ContainerMachine(home, process, group, self)

    def _launch(
        self, home: Path, group: Cgroup, layers: Sequence[Path], scratch: Scratch, init: Path, first_uid: int
    ) -> ProcessId:
        pid_file, log = home / "pid", home / "runtime.log"
        with listening(home / "init.sock") as listener:
            status = OciLaunch(
                layers=layers,
                scratch=scratch,
                init=init,
                first_uid=first_uid,
                num_uids=self._uids.size,
                hidden=self._hidden(),
                command=self._command(home, group, pid_file, log),
                listening=listener.fileno(),
            ).run()
        if status:
            raise StartFailed(f"{self.name} ended with {status}: {_tail(log)}", stage="runtime")
        process = ProcessId.of(int(pid_file.read_text()))
        if process is None:
            raise StartFailed("init ended at once", stage="runtime")
        with contextlib.suppress(OSError):  # it has ended meanwhile; then death() says so
            group.add(process.pid)
        return process

    def _command(self, home: Path, group: Cgroup, pid_file: Path, log: Path) -> list[str]:
        program = shutil.which(self.name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
        if program is None:
            raise StartFailed(f"{self.name} is not installed; install the Debian package {self.name}", stage="runtime")
        common = [program, f"--root={home / 'runtime'}", f"--log={log}"]
        run = ["run", "--detach", "--preserve-fds=1", f"--bundle={home / 'bundle'}", f"--pid-file={pid_file}", home.name]
        if self.name == "runc":
            return [*common, *run]
        # crun makes no groups of its own and stays in ours; the version 2 tree of a hybrid machine is hidden from it.
        visible = Cgroup(replace(group.hierarchy, version2=None), group.name) if self._hidden() else group
        return Launch(group=visible).command([*common, "--cgroup-manager=disabled", *run])

    def _hidden(self) -> list[Path]:
        """crun refuses machines with both versions of control groups mounted."""
        version2 = self._hierarchy.version2
        return [version2.parent] if self._hierarchy.mode == "hybrid" and version2 and self.name == "crun" else []

    def _digests(self, spec: SandboxSpec, snapshot: SnapshotRef | None) -> list[str]:
        if spec.image is None:
            ensure_tiny(self._store)
        digests = list(self._store.image(spec.image or TINY).layers)
        for layer in spec.layers:
            digests += [layer] if layer.startswith("sha256:") else self._store.image(layer).layers
        return [*digests, *(snapshot.layers if snapshot else ())]

    def _remove_files(self, home: Path) -> None:
        Scratch(home).remove()
        self._store.release(owner_of(home))
        first_uid = HomeState(home).load().get("first_uid")
        for name in ("bundle", "runtime"):
            shutil.rmtree(home / name, ignore_errors=True)
        (home / "init.sock").unlink(missing_ok=True)
        if first_uid is not None:
            self._uids.release(first_uid)

    def _group(self, home: Path) -> Cgroup:
        return Cgroup(self._hierarchy, group_name(home))
