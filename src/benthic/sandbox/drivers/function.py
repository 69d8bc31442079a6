"""Function sandboxes: a bubblewrap jail each, as root under host uids of its own, and a warm Python on demand.

The lightest kind: a jail starts in some tens of milliseconds and costs about a megabyte, so that a thousand live on
one host. Its programs are the host's own or an image's, read-only; /work, /tmp and /dev/shm lie in memory. There is no
network. What guards the host is its kernel: namespaces, uids, control groups and the filter of system calls.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path

from benthic.errors import SandboxError
from benthic.sandbox.drivers.function_machine import SOCKET, FunctionMachine
from benthic.sandbox.drivers.jail import USER_ID, Jail
from benthic.sandbox.drivers.process_limits import process_limits
from benthic.sandbox.drivers.stages import Stages
from benthic.sandbox.drivers.trial import try_out
from benthic.sandbox.drivers.work_folder import await_init, fill_work, keep_work, layers_of_work
from benthic.sandbox.drivers.zygote_client import NUM_CALLS, ZygoteClient
from benthic.sandbox.errors import NotSupported, StartFailed
from benthic.sandbox.guest import JobSetup, build_init
from benthic.sandbox.images import Store, chosen_layers
from benthic.sandbox.linux import (
    Cgroup,
    HomeState,
    Launch,
    ProcessId,
    UidPool,
    build_filter,
    find_hierarchy,
    group_name,
    root_tag,
)
from benthic.sandbox.linux.unix_sockets import listening
from benthic.sandbox.records import MIB, Kind, Limits, ProbeResult, SandboxSpec, SnapshotRef

INIT_MEMORY_BYTES = 8 * MIB
"""Allowed on top of the sandbox's memory, for bubblewrap, init and its tables."""
INIT_PROCESSES = 4
"""On top of the sandbox's: bubblewrap, init, the monitor of a command, nsenter."""
INIT_OOM_SCORE = -900
RESULT_BYTES = MIB
"""Of a function call, as JSON."""
OWNER = "function-"
"""Before a sandbox's id: who holds its layers in the store."""


class FunctionDriver:
    """Makes jails for one state root."""

    kind: Kind = "function"
    name = "bubblewrap"

    def __init__(self, root: Path, store: Store, *, uids: UidPool | None = None) -> None:
        """`root` is the state root, in whose `homes` the homes lie."""
        self._root, self._store, self._uids = root, store, uids or UidPool()
        self._is_root = os.geteuid() == 0
        self._hierarchy = find_hierarchy()

    async def probe(self) -> ProbeResult:
        """Starts one, runs `true`, and ends it; never raises."""
        return await try_out(self, self._root, lambda: asyncio.to_thread(self._describe))

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> FunctionMachine:
        """Makes a sandbox whose home is an empty folder.

        Raises:
            StartFailed: with the stage that failed; nothing is left behind.
            NotSupported: the spec asks for a network, or for a snapshot where this process is not root.
        """
        if snapshot is not None and not self._is_root:
            raise NotSupported("snapshots of function sandboxes need root, for their owners and their group")
        if spec.network.rules:
            raise NotSupported(
                "function sandboxes have no network; take a container or a virtual machine for Network.allow"
            )
        stages = Stages(f"function sandbox {home.name}")
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, spec, home, snapshot, stages))
        try:
            # A thread cannot be cancelled: it must not go on making things after they were removed.
            return await asyncio.shield(starting)
        except BaseException as error:
            await asyncio.wait([starting])
            await self.remove(home)
            if isinstance(error, SandboxError | OSError | LookupError) and not isinstance(error, NotSupported):
                raise stages.failure(error) from error
            raise

    async def adopt(self, spec: SandboxSpec, home: Path) -> FunctionMachine | None:
        """The machine of a home folder if it still lives, else None; either way nothing is started."""
        found = HomeState(home).living(self.name)
        if found is None:
            return None
        state, process = found
        return self._machine(spec, home, process, state.get("uid"))

    async def reconcile(self, homes: Container[Path]) -> list[str]:
        """Removes every resource of this driver that belongs to none of these homes; says what went."""
        lost = {owner.removeprefix(OWNER) for owner in self._store.owners() if owner.startswith(OWNER)}
        for id_ in {home.name for home in (self._root / "homes").glob("*")} | set(self._groups()):
            home = self._root / "homes" / id_
            if not home.is_dir() or HomeState(home).load().get("driver") == self.name:
                lost.add(id_)
        gone = []
        for id_ in sorted(lost):
            home = self._root / "homes" / id_
            if home not in homes:
                await self.remove(home)
                gone.append(f"function sandbox {id_}")
        return gone + [f"claim on host uids from {uid}" for uid in self._uids.sweep(self._root)]

    async def remove(self, home: Path) -> None:
        """Everything that a home stands for, whatever of it exists; the home itself and its log stay."""
        state = HomeState(home).load()
        group = self._group(home)
        if group is not None and not await group.remove():
            raise SandboxError(f"processes {group.pids()} of sandbox {home.name} do not end; look into their state")
        if "pid" in state:  # without control groups: the namespace ends with its first process
            process = ProcessId(state["pid"], state["start_ticks"])
            process.kill()
            await process.wait(10)
        await asyncio.to_thread(self._remove_files, home, state.get("uid"))

    def keep(self, home: Path, name: str) -> SnapshotRef:
        """A layer of what lies in a jail's /work, held in the store as `snapshot-<name>`; the jail stands still."""
        state = HomeState(home).load()
        process = ProcessId(state["pid"], state["start_ticks"])
        return keep_work(self._store, process, name, kind=self.kind, id_base=state["uid"])

    def _start(self, spec: SandboxSpec, home: Path, snapshot: SnapshotRef | None, stages: Stages) -> FunctionMachine:
        state = HomeState(home)
        with stages.stage("programs"):
            init = build_init()
            if shutil.which("bwrap") is None:
                raise StartFailed("there is no bwrap on the PATH; install Debian's bubblewrap", stage="programs")
            digests, layers = self._layers(spec, home, state)
        with stages.stage("control group"):
            group = self._group(home)
            state.record(driver=self.name, group=None if group is None else group.name)
            if group is not None:
                limits = _with_processes(spec.limits, INIT_PROCESSES)
                group.create(limits, extra_memory_bytes=INIT_MEMORY_BYTES)
            uid = self._uids.acquire(home) if self._is_root else None
            state.record(uid=uid)
        with stages.stage("jail"), listening(home / SOCKET) as listener:
            launch = Launch(group=group, uid=uid, oom_score_adj=INIT_OOM_SCORE if self._is_root else 0)
            jail = Jail(home=home, launch=launch, limits=spec.limits, init=init, layers=layers)
            process = jail.start(listener.fileno())
            state.record(pid=process.pid, start_ticks=process.start_ticks)
        work = layers_of_work(self._store, digests, snapshot)
        if work and uid is not None:
            with stages.stage("work folder"):
                await_init(process)
                fill_work(self._store, work, process, id_base=uid)
        return self._machine(spec, home, process, uid)

    def _machine(self, spec: SandboxSpec, home: Path, process: ProcessId, uid: int | None) -> FunctionMachine:
        group = self._group(home)
        user = 0 if uid is None else USER_ID
        setup = JobSetup(uid=user, gid=user, rlimits=self._rlimits(spec.limits), seccomp=build_filter())
        limits = spec.limits
        config = {
            "num_calls": NUM_CALLS,
            "uid": user,
            "output_bytes": limits.output_bytes,
            "result_bytes": RESULT_BYTES,
            "disk_bytes": min(limits.disk_bytes, limits.memory_bytes // 2),
            "num_files": limits.num_files,
            "folders": ["/work", "/tmp", "/dev/shm"],
            "rlimits": setup.rlimits,
            "seccomp": setup.seccomp.hex(),
        }
        # It enters as the host's root and becomes root of the jail on the way.
        zygote = ZygoteClient(home, process, Launch(group=group, oom_score_adj=-500 if self._is_root else 0), config)
        return FunctionMachine(home, process, group, setup, zygote, self)

    def _rlimits(self, limits: Limits) -> tuple[tuple[str, int], ...]:
        rlimits = process_limits(limits)
        if "memory" in self._hierarchy.missing:
            rlimits += (("as", limits.memory_bytes),)  # of each process alone, for want of better
        return rlimits

    def _layers(self, spec: SandboxSpec, home: Path, state: HomeState) -> tuple[Sequence[str], Sequence[Path]]:
        """The image's layers and the spec's own, lowest first, and their folders; none for the host's own programs."""
        if spec.image is None:
            if spec.layers:
                raise NotSupported("layers need an image below them; name one, or take kind='container'")
            return (), ()
        digests = chosen_layers(self._store, spec.image, spec.layers)
        if len(digests) > 1 and not self._is_root:
            raise NotSupported(f"an image of {len(digests)} layers needs root; merge them into one")
        state.record(driver=self.name)
        return digests, self._store.mount(OWNER + home.name, digests)

    def _group(self, home: Path) -> Cgroup | None:
        return None if self._hierarchy.mode == "none" else Cgroup(self._hierarchy, group_name(home))

    def _groups(self) -> list[str]:
        """Ids that have a control group below this state root's, of whatever kind of sandbox."""
        folders = [tree / root_tag(self._root) for tree in self._hierarchy.trees]
        return [entry.name for folder in folders if folder.is_dir() for entry in folder.iterdir() if entry.is_dir()]

    def _remove_files(self, home: Path, uid: int | None) -> None:
        self._store.release(OWNER + home.name)
        self._uids.release(home, uid)
        for name in (SOCKET, "zygote.sock"):
            (home / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            HomeState(home).record(driver=None, uid=None, pid=None, start_ticks=None, group=None)

    def _describe(self) -> str:
        version = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=False).stdout.strip()
        missing = ", ".join(self._hierarchy.missing)
        limits = f"no limit of {missing}: {self._hierarchy.mode} control groups" if missing else "all limits"
        return f"{version}; {'own host uids' if self._is_root else 'as this user'}; {limits}"


def _with_processes(limits: Limits, extra: int) -> Limits:
    return replace(limits, num_processes=limits.num_processes + extra)
