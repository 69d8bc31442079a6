"""Containers by an OCI runtime: layers under overlayfs, a user namespace over host uids of their own, a control group.

Root inside owns its files and is nobody on the host. Nothing of the host is mounted inside but init's program. The
network is empty, unless the sandbox's rules let its connections out through the host's proxy (`network/`).

A container is found again by its first process (pid and start time, in its home) and swept by the names of its
control group, its mounts and its claims, all of which carry its id.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Container, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from benthic.errors import SandboxError
from benthic.sandbox.drivers import oci
from benthic.sandbox.drivers.container_machine import ContainerMachine
from benthic.sandbox.drivers.oci_launch import CONTROL, INIT, ROOT, OciLaunch
from benthic.sandbox.drivers.oci_runtime import RUNTIMES, Runtime
from benthic.sandbox.drivers.process_limits import process_limits
from benthic.sandbox.drivers.scratch import USER_ID, Scratch
from benthic.sandbox.drivers.stages import Stages
from benthic.sandbox.drivers.trial import try_out
from benthic.sandbox.errors import NotSupported, StartFailed
from benthic.sandbox.guest import JobSetup, build_init
from benthic.sandbox.images import TINY, Store, chosen_layers
from benthic.sandbox.images.snapshot import bounded_chain, snapshot_upper
from benthic.sandbox.images.stack import distinct
from benthic.sandbox.images.state import state_digest
from benthic.sandbox.images.store import SNAPSHOT
from benthic.sandbox.linux import (
    Cgroup,
    HomeState,
    ProcessId,
    UidPool,
    build_filter,
    find_hierarchy,
    group_name,
    mounts,
    root_tag,
)
from benthic.sandbox.linux.cgroup_mounts import BASE
from benthic.sandbox.linux.namespaces import bound_segments, bound_watches, id_map
from benthic.sandbox.linux.unix_sockets import listening, take_socket
from benthic.sandbox.network.egress import RESOLV_CONF
from benthic.sandbox.records import Kind, ProbeResult, SandboxSpec, SnapshotRef

SEGMENTS_SHARE = 4
"""Of its memory a sandbox may hold one part in so many as System V segments."""
SOCKET, PID_FILE, LOG = "init.sock", "pid", "runtime.log"
MADE_IN = "control"
"""Folder of a home in which init makes its socket, if it gets none."""
NOBODY = 65534
SOCKET_LIMIT_S = 20.0
"""For init under a kernel of its own to make its socket."""
OWNER = "container-"
"""Before a sandbox's id: who holds its layers in the store."""


class ContainerDriver:
    """Makes containers with one runtime, for one state root."""

    kind: Kind = "container"

    def __init__(self, root: Path, store: Store, *, runtime: Runtime = "crun", uids: UidPool | None = None) -> None:
        """`root` is the state root, in whose `homes` the homes lie."""
        self.name, self.runtime = runtime, RUNTIMES[runtime]
        self.root, self.store, self._uids = root, store, uids or UidPool()
        self._hierarchy = find_hierarchy()
        self._filter = build_filter()

    async def probe(self) -> ProbeResult:
        """Starts one, runs `true`, and ends it; never raises."""
        return await try_out(self, self.root, lambda: asyncio.to_thread(self.runtime.version))

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> ContainerMachine:
        """Makes a sandbox whose home is an empty folder.

        Raises:
            StartFailed: with the stage that failed; nothing is left behind.
            NotSupported: this process is not root, or the runtime cannot do what the spec asks for.
        """
        stages = Stages(f"container {home.name}")
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, spec, home, snapshot, stages))
        try:
            # A thread cannot be cancelled: it must not go on making things after they were removed.
            machine = await asyncio.shield(starting)
            if self.runtime.has_own_kernel:
                with stages.stage("init"):
                    await take_socket(home / MADE_IN / SOCKET, home / SOCKET, limit_s=SOCKET_LIMIT_S)
            return machine
        except BaseException as error:
            await asyncio.wait([starting])
            await self.remove(home)
            if isinstance(error, SandboxError | OSError | LookupError) and not isinstance(error, NotSupported):
                raise stages.failure(error) from error
            raise

    async def adopt(self, spec: SandboxSpec, home: Path) -> ContainerMachine | None:
        """The machine of a home folder if it still lives, else None; either way nothing is started."""
        found = HomeState(home).living(self.name)
        return None if found is None else self._machine(spec, home, found[1])

    async def reconcile(self, homes: Container[Path]) -> list[str]:
        """Removes every resource of this driver that belongs to none of these homes; says what went."""
        gone = []
        for home in sorted((self.root / "homes").glob("*")):
            if HomeState(home).load().get("driver") == self.name and home not in homes:
                await self.remove(home)
                gone.append(f"container {home.name}")
        for id_ in self._homeless():
            home = self.root / "homes" / id_
            if home not in homes:
                await self.remove(home)
                gone.append(f"what was left of sandbox {id_}")
        return gone + [f"claim on host uids from {uid}" for uid in self._uids.sweep(self.root)]

    async def remove(self, home: Path) -> None:
        """Everything that a home stands for, whatever of it exists."""
        group = self._group(home)
        if not await group.remove():
            raise SandboxError(f"processes {group.pids()} of sandbox {home.name} do not end; look into their state")
        await asyncio.to_thread(self._remove_files, home)

    def keep(self, home: Path, name: str) -> SnapshotRef:
        """A layer of what a home's container has written, held in the store as `snapshot-<name>`."""
        chain = HomeState(home).load().get("chain", [])
        with self.store.adding():
            layer = snapshot_upper(self.store, Scratch(home).upper, source=f"sandbox {home.name}")
            layers = bounded_chain(self.store, [*chain, layer.digest])
            self.store.hold(f"{SNAPSHOT}{name}", layers)
        size = sum(self.store.layer(digest).size_bytes for digest in layers)
        state = state_digest(self.store, layers)
        return SnapshotRef(id=name, kind=self.kind, seq=-1, layers=layers, size_bytes=size, state=state)

    def _homeless(self) -> list[str]:
        """Ids of sandboxes whose home is gone and of which a group, a mount or a held layer is left."""
        homes = self.root / "homes"
        tag = root_tag(self.root)
        ids = {path.name for tree in self._hierarchy.trees for path in (tree / tag).glob("*") if path.is_dir()}
        ids |= {mount.relative_to(homes.resolve()).parts[0] for mount in mounts.mounts_below(homes) if mount != homes}
        ids |= {owner.removeprefix(OWNER) for owner in self.store.owners() if owner.startswith(OWNER)}
        return sorted(id_ for id_ in ids if not (homes / id_).exists())

    def _start(self, spec: SandboxSpec, home: Path, snapshot: SnapshotRef | None, stages: Stages) -> ContainerMachine:
        if os.geteuid():
            raise NotSupported("containers need root for their mounts and host uids; run as root, or take another kind")
        state = HomeState(home)
        if spec.network.rules and self.runtime.has_own_kernel:
            raise NotSupported(f"{self.name} containers have no network; take driver='crun' for Network.allow")
        with stages.stage("runtime"):
            self.runtime.found()
        with stages.stage("uids"):
            # The claim names the home by itself, so the record may come after it.
            first_uid = self._uids.acquire(home)
            chain = list(snapshot.layers) if snapshot else []
            state.record(driver=self.name, chain=chain, first_uid=first_uid)
        with ThreadPoolExecutor(1) as pool:
            mapping = pool.submit(id_map, first_uid, self._uids.size)  # two short programs, meanwhile
            try:
                process = self._made(spec, home, self._digests(spec, snapshot), first_uid, mapping, stages)
            finally:
                if mapping.exception() is None:
                    os.close(mapping.result())
        state.record(pid=process.pid, start_ticks=process.start_ticks)
        return self._machine(spec, home, process)

    def _made(
        self,
        spec: SandboxSpec,
        home: Path,
        digests: Sequence[str],
        first_uid: int,
        mapping: Future[int],
        stages: Stages,
    ) -> ProcessId:
        """Every resource of a claimed home, one after the other."""
        with stages.stage("init"):
            init = build_init()
        with stages.stage("layers"):
            layers = self.store.mount(OWNER + home.name, digests)
        with stages.stage("group"):
            group = self._group(home)
            limits = self.runtime.group_limits(spec.limits)
            group.create(limits, extra_memory_bytes=self.runtime.spare_memory_bytes)
        with stages.stage("disk"):
            scratch = Scratch(home)
            scratch.create(spec.limits, self.root / "disks")
            if spec.network.rules:
                scratch.add_file("etc/resolv.conf", RESOLV_CONF)
        with stages.stage("uids"):
            namespace = mapping.result()
        with stages.stage("runtime"):
            control = self._make_control(home, first_uid) if self.runtime.has_own_kernel else None
            listen_fd, listen = ("--listen-fd", str(oci.LISTEN_FD)), ("--listen", f"{oci.CONTROL}/{SOCKET}")
            config = oci.bundle_config(
                root=ROOT,
                init=INIT,
                arguments=listen_fd if control is None else listen,
                first_uid=first_uid,
                num_uids=self._uids.size,
                limits=spec.limits,
                cgroup=f"/{BASE}/{group.name}" if self.runtime.makes_groups else None,
                control=None if control is None else CONTROL,
            )
            oci.write_bundle(home / "bundle", config)
            launch = OciLaunch(
                layers=layers,
                scratch=scratch,
                init=init,
                id_map=namespace,
                moved=self.runtime.moved(group),
                control=control,
                command=self.runtime.command(home, group, home / PID_FILE, home / LOG),
            )
            process = self._launch(home, group, launch)
            if not self.runtime.has_own_kernel:
                bound_segments(process.pid, spec.limits.memory_bytes // SEGMENTS_SHARE, root_uid=first_uid)
                bound_watches(process.pid)
            return process

    def _make_control(self, home: Path, first_uid: int) -> Path:
        """A folder for init's socket, which init alone may enter: it overrides owners, and nobody is no command."""
        folder = home / MADE_IN
        folder.mkdir(mode=0o700)
        os.chown(folder, first_uid + NOBODY, first_uid + NOBODY)
        return folder

    def _launch(self, home: Path, group: Cgroup, launch: OciLaunch) -> ProcessId:
        if self.runtime.has_own_kernel:
            status = launch.run()
        else:
            with listening(home / SOCKET) as listener:
                status = replace(launch, listening=listener.fileno()).run()
        if status:
            raise StartFailed(f"{self.name} ended with {status}: {_tail(home / LOG)}", stage="runtime")
        process = ProcessId.of(int((home / PID_FILE).read_text()))
        if process is None:
            raise StartFailed("init ended at once", stage="runtime")
        if self.runtime.makes_groups:  # it knows no version 2 tree beside version 1
            with contextlib.suppress(OSError):  # it has ended meanwhile; then death() says so
                group.add(process.pid)
        return process

    def _digests(self, spec: SandboxSpec, snapshot: SnapshotRef | None) -> list[str]:
        layers = chosen_layers(self.store, spec.image, spec.layers)
        return list(distinct([*layers, *(snapshot.layers if snapshot else ())]))

    def _machine(self, spec: SandboxSpec, home: Path, process: ProcessId) -> ContainerMachine:
        machine = ContainerMachine(home, process, self._group(home), self._setup(spec), self)
        machine.ends_at_processes = self.runtime.has_own_kernel
        return machine

    def _setup(self, spec: SandboxSpec) -> JobSetup:
        """Who commands are, and what each process may use."""
        rlimits = process_limits(spec.limits)
        if self.runtime.has_own_kernel:  # gVisor has no such limit, nor message queues of the host's
            rlimits = tuple(limit for limit in rlimits if limit[0] != "msgqueue")
        env = self.store.image(spec.image or TINY).config.env
        return JobSetup(uid=USER_ID, gid=USER_ID, env=env, rlimits=rlimits, seccomp=self._filter)

    def _runtime_groups(self, home: Path) -> list[Path]:
        """Groups that runc has made beside ours: it joins every tree that is mounted."""
        beside = {tree.parent.parent for tree in self._hierarchy.version1.values()}
        return [path for top in beside for path in top.glob(f"*/{BASE}/{group_name(home)}")]

    def _remove_files(self, home: Path) -> None:
        for group in self._runtime_groups(home):
            with contextlib.suppress(OSError):
                group.rmdir()
        Scratch(home).remove()
        self.store.release(OWNER + home.name)
        for name in ("bundle", "runtime", MADE_IN):
            shutil.rmtree(home / name, ignore_errors=True)
        (home / SOCKET).unlink(missing_ok=True)
        self._uids.release(home, HomeState(home).load().get("first_uid"))

    def _group(self, home: Path) -> Cgroup:
        return Cgroup(self._hierarchy, group_name(home))


def _tail(log: Path) -> str:
    """The end of a runtime's log, which says why it failed."""
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace").strip()[-1000:] or "it said nothing"
    return "it wrote no log"
