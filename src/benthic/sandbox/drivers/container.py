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
import subprocess
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

from benthic.errors import SandboxError
from benthic.sandbox.drivers import oci
from benthic.sandbox.drivers.container_machine import ContainerMachine
from benthic.sandbox.drivers.oci_launch import INIT, MOVED, ROOT, OciLaunch
from benthic.sandbox.drivers.scratch import USER_ID, Scratch
from benthic.sandbox.drivers.stages import Stages
from benthic.sandbox.drivers.trial import try_out
from benthic.sandbox.errors import NotSupported, StartFailed
from benthic.sandbox.guest import JobSetup, build_init
from benthic.sandbox.images import TINY, Store, chosen_layers
from benthic.sandbox.images.snapshot import bounded_chain, snapshot_upper
from benthic.sandbox.images.stack import distinct
from benthic.sandbox.images.store import SNAPSHOT
from benthic.sandbox.linux import (
    Cgroup,
    HomeState,
    Launch,
    ProcessId,
    UidPool,
    build_filter,
    find_hierarchy,
    group_name,
    mounts,
    root_tag,
)
from benthic.sandbox.linux.cgroup_mounts import BASE
from benthic.sandbox.linux.namespaces import bound_segments, id_map
from benthic.sandbox.linux.unix_sockets import listening
from benthic.sandbox.network.egress import RESOLV_CONF
from benthic.sandbox.records import Kind, Limits, ProbeResult, SandboxSpec, SnapshotRef

_SMALL_BYTES = 64 << 10
Runtime = Literal["crun", "runc"]
RUNTIMES: tuple[Runtime, ...] = ("crun", "runc")
"""In order of preference: crun is quicker and smaller."""
INIT_MEMORY_BYTES = 4 << 20
"""Allowed on top of the sandbox's memory, for init and its tables."""
INIT_PROCESSES = 2
SEGMENTS_SHARE = 4
"""Of its memory a sandbox may hold one part in so many as System V segments."""
OOM_SCORE_ADJ = -900
"""Init's; it is inherited, since nobody may lower it inside. Commands raise theirs."""
OWNER = "container-"
"""Before a sandbox's id: who holds its layers in the store."""


class ContainerDriver:
    """Makes containers with one runtime, for one state root."""

    kind: Kind = "container"

    def __init__(self, root: Path, store: Store, *, runtime: Runtime = "crun", uids: UidPool | None = None) -> None:
        """`root` is the state root, in whose `homes` the homes lie."""
        self.name = runtime
        self.root, self.store, self._uids = root, store, uids or UidPool()
        self._hierarchy = find_hierarchy()
        self._filter = build_filter()

    async def probe(self) -> ProbeResult:
        """Starts one, runs `true`, and ends it; never raises."""
        return await try_out(self, self.root, lambda: _version(self.name))

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> ContainerMachine:
        """Makes a sandbox whose home is an empty folder.

        Raises:
            StartFailed: with the stage that failed; nothing is left behind.
        """
        stages = Stages(f"container {home.name}")
        starting = asyncio.ensure_future(asyncio.to_thread(self._start, spec, home, snapshot, stages))
        try:
            # A thread cannot be cancelled: it must not go on making things after they were removed.
            machine = await asyncio.shield(starting)
            with stages.stage("network"):
                await machine.open_network(spec.network)
            return machine
        except BaseException as error:
            await asyncio.wait([starting])
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
        if not process.is_alive():
            return None
        machine = ContainerMachine(home, process, self._group(home), self._setup(spec), self)
        await machine.open_network(spec.network)
        return machine

    async def reconcile(self, homes: Sequence[Path]) -> list[str]:
        """Removes every resource of this driver that belongs to none of these homes; says what went."""
        alive = {home.name for home in homes}
        gone = []
        for home in sorted((self.root / "homes").glob("*")):
            if home.name not in alive and HomeState(home).load().get("driver") == self.name:
                await self.remove(home)
                gone.append(f"container {home.name}")
        for id_ in self._homeless():
            await self.remove(self.root / "homes" / id_)
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
        return SnapshotRef(id=name, kind=self.kind, seq=-1, layers=layers, size_bytes=size)

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
        with stages.stage("runtime"):
            _program(self.name)
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
        return ContainerMachine(home, process, self._group(home), self._setup(spec), self)

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
            group.create(_with_init(spec.limits), extra_memory_bytes=INIT_MEMORY_BYTES)
        with stages.stage("disk"):
            scratch = Scratch(home)
            scratch.create(spec.limits, self.root / "disks")
            if spec.network.rules:
                scratch.add_file("etc/resolv.conf", RESOLV_CONF)
        with stages.stage("uids"):
            namespace = mapping.result()
        with stages.stage("runtime"):
            config = oci.bundle_config(
                root=ROOT,
                init=INIT,
                arguments=("--listen-fd", str(oci.LISTEN_FD)),
                first_uid=first_uid,
                num_uids=self._uids.size,
                limits=spec.limits,
                cgroup=f"/{BASE}/{group.name}" if self.name == "runc" else None,
            )
            oci.write_bundle(home / "bundle", config)
            process = self._launch(home, group, layers, scratch, init, namespace)
            bound_segments(process.pid, spec.limits.memory_bytes // SEGMENTS_SHARE, root_uid=first_uid)
            return process

    def _launch(
        self, home: Path, group: Cgroup, layers: Sequence[Path], scratch: Scratch, init: Path, namespace: int
    ) -> ProcessId:
        pid_file, log = home / "pid", home / "runtime.log"
        with listening(home / "init.sock") as listener:
            status = OciLaunch(
                layers=layers,
                scratch=scratch,
                init=init,
                id_map=namespace,
                moved=self._moved(),
                command=self._command(home, group, pid_file, log),
                listening=listener.fileno(),
            ).run()
        if status:
            raise StartFailed(f"{self.name} ended with {status}: {_tail(log)}", stage="runtime")
        process = ProcessId.of(int(pid_file.read_text()))
        if process is None:
            raise StartFailed("init ended at once", stage="runtime")
        if self.name == "runc":  # which knows no version 2 tree beside version 1
            with contextlib.suppress(OSError):  # it has ended meanwhile; then death() says so
                group.add(process.pid)
        return process

    def _command(self, home: Path, group: Cgroup, pid_file: Path, log: Path) -> list[str]:
        common = [_program(self.name), f"--root={home / 'runtime'}", f"--log={log}"]
        run = [
            "run",
            "--detach",
            "--preserve-fds=1",
            f"--bundle={home / 'bundle'}",
            f"--pid-file={pid_file}",
            home.name,
        ]
        if self.name == "runc":
            return Launch(oom_score_adj=OOM_SCORE_ADJ).command([*common, *run])
        # crun makes no groups of its own and stays in ours.
        if self._moved() is not None:
            group = Cgroup(replace(group.hierarchy, version2=MOVED / BASE), group.name)
        return Launch(group=group, oom_score_adj=OOM_SCORE_ADJ).command([*common, "--cgroup-manager=disabled", *run])

    def _moved(self) -> Path | None:
        """crun refuses machines with both versions of control groups mounted where they are by custom."""
        version2 = self._hierarchy.version2
        return version2.parent if version2 and self._hierarchy.mode == "hybrid" and self.name == "crun" else None

    def _digests(self, spec: SandboxSpec, snapshot: SnapshotRef | None) -> list[str]:
        layers = chosen_layers(self.store, spec.image, spec.layers)
        return list(distinct([*layers, *(snapshot.layers if snapshot else ())]))

    def _setup(self, spec: SandboxSpec) -> JobSetup:
        """Who commands are, and what each process may use."""
        limits = spec.limits
        return JobSetup(
            uid=USER_ID,
            gid=USER_ID,
            env=self.store.image(spec.image or TINY).config.env,
            rlimits=(
                ("core", 0),
                ("fsize", limits.file_bytes),
                ("memlock", _SMALL_BYTES),
                ("msgqueue", _SMALL_BYTES),
                ("nofile", limits.num_open_files),
                ("nproc", limits.num_processes),
            ),
            seccomp=self._filter,
        )

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
        first_uid = HomeState(home).load().get("first_uid")
        for name in ("bundle", "runtime"):
            shutil.rmtree(home / name, ignore_errors=True)
        (home / "init.sock").unlink(missing_ok=True)
        if first_uid is not None:
            self._uids.release(first_uid)

    def _group(self, home: Path) -> Cgroup:
        return Cgroup(self._hierarchy, group_name(home))


def _version(runtime: str) -> str:
    """The first line that a runtime says of itself."""
    done = subprocess.run([_program(runtime), "--version"], capture_output=True, text=True, check=False)
    return done.stdout.partition("\n")[0]


def _program(runtime: str) -> str:
    found = shutil.which(runtime, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin")
    if found is None:
        raise StartFailed(f"{runtime} is not installed; install the Debian package {runtime}", stage="runtime")
    return found


def _with_init(limits: Limits) -> Limits:
    return replace(limits, num_processes=limits.num_processes + INIT_PROCESSES)


def _tail(log: Path) -> str:
    """The end of a runtime's log, which says why it failed."""
    with contextlib.suppress(OSError):
        return log.read_text(errors="replace").strip()[-1000:] or "it said nothing"
    return "it wrote no log"
