"""Containers by a Docker daemon of this machine, for hosts where nothing may be started beside it.

The daemon keeps the image (imported on first use, as one layer) and the control group. The root is read-only; /work,
/tmp and /dev/shm lie in memory; init's program is bound in, and makes its socket in a folder that it alone may enter.
Slower than crun and weaker: unless the daemon remaps users, root inside is the host's root, without any capability
that reaches out. Commands have a host uid of the sandbox's own.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benthic.errors import SandboxError
from benthic.sandbox.drivers import oci
from benthic.sandbox.drivers.docker_api import DockerApi, daemon_socket
from benthic.sandbox.drivers.docker_machine import DockerMachine
from benthic.sandbox.drivers.process_limits import process_limits
from benthic.sandbox.drivers.scratch import USER_ID
from benthic.sandbox.drivers.stages import Stages
from benthic.sandbox.drivers.trial import try_out
from benthic.sandbox.drivers.work_folder import fill_work, keep_work, layers_of_work
from benthic.sandbox.errors import NotSupported, StartFailed
from benthic.sandbox.guest import JobSetup, build_init
from benthic.sandbox.images import TINY, Store, chosen_layers
from benthic.sandbox.images.contents import open_stack
from benthic.sandbox.images.tar import write_tar
from benthic.sandbox.images.tiny import USER
from benthic.sandbox.linux import Cgroup, HomeState, ProcessId, UidPool, build_filter, find_hierarchy, root_tag
from benthic.sandbox.linux.namespaces import bound_segments
from benthic.sandbox.linux.unix_sockets import take_socket
from benthic.sandbox.network.egress import RESOLV_CONF
from benthic.sandbox.records import MIB, Kind, Limits, ProbeResult, SandboxSpec, SnapshotRef

REPOSITORY = "benthic"
"""Of the images that the daemon keeps for us."""
LABEL = "benthic.root"
INIT_MEMORY_BYTES, INIT_PROCESSES = 4 * MIB, 2
SOCKET, MADE_IN = "init.sock", "control"
SOCKET_LIMIT_S = 20.0
NOBODY = 65534
SEGMENTS_SHARE = 4
"""Of its memory a sandbox may hold one part in so many as System V segments."""
_WALLS = {
    "NetworkMode": "none",
    "Sysctls": {"net.ipv6.conf.all.disable_ipv6": "0"},  # of its own loopback, where allowed addresses are served
    "IpcMode": "private",
    "CgroupnsMode": "private",
    "ReadonlyRootfs": True,
    "CapDrop": ["ALL"],
    "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETPCAP", "SETUID"],
    "SecurityOpt": ["no-new-privileges"],
    "LogConfig": {"Type": "none"},
    "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
}
WORK_SHARE = 10 / 16
"""Of the disk's bytes and files, /work's; the rest is /tmp's."""


class DockerDriver:
    """Makes containers through one daemon, for one state root."""

    kind: Kind = "container"
    name = "docker"

    def __init__(self, root: Path, store: Store, *, socket: Path | None = None, uids: UidPool | None = None) -> None:
        """`socket` is the daemon's; None is what $DOCKER_HOST says, or Docker's own place."""
        self.root, self.store, self._uids = root, store, uids or UidPool()
        self._api = DockerApi(socket or daemon_socket())
        self._is_remapped: bool | None = None
        self._hierarchy = find_hierarchy()
        self._filter = build_filter()

    async def probe(self) -> ProbeResult:
        """Starts one, runs `true`, and ends it; never raises."""
        return await try_out(self, self.root, self._api.version)

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> DockerMachine:
        """Makes a sandbox whose home is an empty folder.

        Raises:
            StartFailed: with the stage that failed; nothing is left behind.
            NotSupported: this process is not root, or the daemon remaps users.
        """
        stages = Stages(f"container {home.name}")
        starting = asyncio.ensure_future(self._start(spec, home, snapshot, stages))
        try:
            # Not cut off in the middle of a request: the daemon would go on with it after all was removed.
            return await asyncio.shield(starting)
        except BaseException as error:
            await asyncio.wait([starting])
            with contextlib.suppress(StartFailed):  # without a daemon nothing of its was made
                await self.remove(home)
            if isinstance(error, SandboxError | OSError | LookupError) and not isinstance(error, NotSupported):
                raise stages.failure(error) from error
            raise

    async def adopt(self, spec: SandboxSpec, home: Path) -> DockerMachine | None:
        """The machine of a home folder if it still lives, else None; either way nothing is started."""
        found = HomeState(home).living(self.name)
        if found is None:
            return None
        state, process = found
        return self._machine(spec, home, process, state["group"], state["first_uid"])

    async def reconcile(self, homes: Container[Path]) -> list[str]:
        """Removes every resource of this driver that belongs to none of these homes; says what went."""
        found = {home.name for home in (self.root / "homes").glob("*") if self._is_ours(home)}
        gone = []
        with contextlib.suppress(StartFailed):  # no daemon answers: what it may hold waits for the next time
            if found or self._api.socket.exists():
                names = await self._api.names(f"{LABEL}={root_tag(self.root)}")
                found |= {name.rpartition("-")[2] for name in names}
            for home in sorted(self.root / "homes" / id_ for id_ in found):
                if home not in homes:
                    await self.remove(home)
                    gone.append(f"container {home.name}")
        return gone + [f"claim on host uids from {uid}" for uid in self._uids.sweep(self.root)]

    async def remove(self, home: Path) -> None:
        """Everything that a home stands for, whatever of it exists."""
        state = HomeState(home).load()
        if "group" in state:
            with contextlib.suppress(OSError):  # it has ended, and its group with it
                self._group(state["group"]).thaw()
        await self._api.remove(self._container(home))
        shutil.rmtree(home / MADE_IN, ignore_errors=True)
        (home / SOCKET).unlink(missing_ok=True)
        self._uids.release(home, state.get("first_uid"))

    def keep(self, home: Path, name: str) -> SnapshotRef:
        """A layer of what lies in a container's /work, held in the store as `snapshot-<name>`."""
        state = HomeState(home).load()
        process = ProcessId(state["pid"], state["start_ticks"])
        return keep_work(self.store, process, name, kind=self.kind, id_base=state["first_uid"])

    async def out_of_memory(self, home: Path) -> bool:
        """Whether the daemon has seen the kernel end one of its processes for memory."""
        state = await self._api.state(self._container(home))
        return state is not None and bool(state["OOMKilled"])

    async def _start(
        self, spec: SandboxSpec, home: Path, snapshot: SnapshotRef | None, stages: Stages
    ) -> DockerMachine:
        if os.geteuid():
            raise NotSupported("Docker containers need root here, for their files and host uids; run as root")
        with stages.stage("daemon"):
            if self._is_remapped is None:
                self._is_remapped = await self._api.is_remapped()  # slow: the daemon tells all that it knows
            if self._is_remapped:
                raise NotSupported("this Docker daemon remaps users, which is not supported; take driver='crun'")
        with stages.stage("image"):
            digests = await asyncio.to_thread(chosen_layers, self.store, spec.image, spec.layers)
            image = await self._image(digests, home)
        with stages.stage("uids"):
            first_uid = self._uids.acquire(home)
            HomeState(home).record(driver=self.name, first_uid=first_uid)
        with stages.stage("container"):
            config = await asyncio.to_thread(self._config, spec, home, image, first_uid)
            container = await self._api.create(self._container(home), config)
            await self._api.start(container)
            process, group = self._first_process(container, await self._api.state(container))
            bound_segments(process.pid, spec.limits.memory_bytes // SEGMENTS_SHARE, root_uid=0)
            HomeState(home).record(pid=process.pid, start_ticks=process.start_ticks, group=group)
        with stages.stage("init"):
            await take_socket(home / MADE_IN / SOCKET, home / SOCKET, limit_s=SOCKET_LIMIT_S)
            # All terminals of a host share one number, and the daemon sets no limit: init alone makes them.
            os.chmod(f"/proc/{process.pid}/root/dev/pts/ptmx", 0o600)
        with stages.stage("work folder"):
            work = layers_of_work(self.store, digests, snapshot)
            if work:
                await asyncio.to_thread(fill_work, self.store, work, process, id_base=first_uid)
        return self._machine(spec, home, process, group, first_uid)

    async def _image(self, digests: Sequence[str], home: Path) -> str:
        """The daemon's image of these layers, imported if it is not there."""
        tag = hashlib.sha256("\n".join(digests).encode()).hexdigest()[:32]
        name = f"{REPOSITORY}:{tag}"
        if not await self._api.has_image(name):  # twice at once gives the same image twice
            archive = home / "image.tar"
            await asyncio.to_thread(_flatten, self.store, digests, archive)
            await self._api.import_image(REPOSITORY, tag, archive)
            archive.unlink()
        return name

    def _config(self, spec: SandboxSpec, home: Path, image: str, first_uid: int) -> dict[str, Any]:
        """What the daemon is asked for; makes the files that are bound in."""
        control = home / MADE_IN
        control.mkdir(mode=0o700)
        os.chown(control, NOBODY, NOBODY)
        user = first_uid + USER_ID
        texts = {
            "resolv.conf": RESOLV_CONF if spec.network.rules else "",
            "passwd": f"root:x:0:0:root:/root:/bin/sh\n{USER}:x:{user}:{user}:{USER}:/work:/bin/sh\n",
            "group": f"root:x:0:\n{USER}:x:{user}:\n",
        }
        bound = [_bound(build_init(), oci.INIT), _bound(control, oci.CONTROL, is_read_only=False)]
        for name, text in texts.items():
            (home / name).write_text(text)
            (home / name).chmod(0o644)
            bound.append(_bound(home / name, f"/etc/{name}"))
        return {
            "Image": image,
            "Entrypoint": [oci.INIT],
            "Cmd": ["--listen", f"{oci.CONTROL}/{SOCKET}"],
            "User": "0:0",
            "WorkingDir": "/",
            "Hostname": oci.HOSTNAME,
            "Labels": {LABEL: root_tag(self.root)},
            "HostConfig": {**_limits(spec.limits, user), **_WALLS, "Mounts": bound},
        }

    def _first_process(self, container: str, state: dict[str, Any] | None) -> tuple[ProcessId, str]:
        """Init, as this machine sees it, and its control group."""
        process = ProcessId.of(state["Pid"]) if state and state["Pid"] else None
        if process is None:
            raise StartFailed(f"init ended at once: {state}", stage="container")
        lines = [line.split(":", 2) for line in Path(f"/proc/{process.pid}/cgroup").read_text().splitlines()]
        controllers = ("memory",) if self._hierarchy.version1 else ("",)
        name = next(path for _, names, path in lines if names in controllers)
        if container not in name:
            raise StartFailed(f"the daemon at {self._api.socket} is another machine's", stage="container")
        return process, name.lstrip("/")

    def _group(self, name: str) -> Cgroup:
        """A group of the daemon's, which lies beside ours and joins no version 2 tree without controllers."""
        hierarchy = self._hierarchy
        if hierarchy.version1:
            beside = {controller: folder.parent for controller, folder in hierarchy.version1.items()}
            return Cgroup(replace(hierarchy, version1=beside, version2=None), name)
        assert hierarchy.version2 is not None, "a daemon needs control groups"
        return Cgroup(replace(hierarchy, version2=hierarchy.version2.parent), name)

    def _machine(self, spec: SandboxSpec, home: Path, process: ProcessId, group: str, first_uid: int) -> DockerMachine:
        limits = spec.limits
        setup = JobSetup(
            uid=first_uid + USER_ID,
            gid=first_uid + USER_ID,
            env=self.store.image(spec.image or TINY).config.env,
            rlimits=process_limits(limits),
            seccomp=self._filter,
        )
        return DockerMachine(home, process, self._group(group), setup, self)

    def _container(self, home: Path) -> str:
        return f"{REPOSITORY}-{root_tag(self.root)}-{home.name}"

    def _is_ours(self, home: Path) -> bool:
        return HomeState(home).load().get("driver") == self.name


def _flatten(store: Store, digests: Sequence[str], archive: Path) -> None:
    with open_stack(store, digests) as contents, archive.open("xb") as out:
        write_tar(contents, out)


def _bound(source: Path, target: str, *, is_read_only: bool = True) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": is_read_only}


def _limits(limits: Limits, user: int) -> dict[str, Any]:
    """Memory file systems lie in the sandbox's memory: less than that, so that a full disk says so."""
    memory_bytes = limits.memory_bytes + INIT_MEMORY_BYTES
    disk_bytes = min(limits.disk_bytes, limits.memory_bytes // 2)
    folders = {"/work": (WORK_SHARE, f"mode=755,uid={user},gid={user}"), "/tmp": (1 - WORK_SHARE, "mode=1777")}
    return {
        "Memory": memory_bytes,
        "MemorySwap": memory_bytes,
        "NanoCpus": int(limits.cpus * 1e9),
        "CpuShares": 2 if limits.cpu_class == "batch" else 0,
        "PidsLimit": limits.num_processes + INIT_PROCESSES,
        "ShmSize": oci.shm_bytes(limits),
        "Tmpfs": {
            folder: f"exec,nosuid,nodev,size={int(disk_bytes * share)},nr_inodes={int(limits.num_files * share)},{own}"
            for folder, (share, own) in folders.items()
        },
    }
