"""A driver without isolation, for tests of what lies above drivers: init in a pid and a mount namespace of its own.

Every sandbox sees its own folder at the place that `BareDriver.work` names; all else is the machine's. A snapshot is a
copy of that folder. As an ordinary user there is no control group, so nothing freezes.
"""

import asyncio
import os
import shutil
import subprocess
from asyncio import StreamReader, StreamWriter
from collections.abc import Container
from pathlib import Path

from benthic.sandbox.errors import NotSupported, StartFailed
from benthic.sandbox.guest import Guest, JobSetup, build_init
from benthic.sandbox.linux import Cgroup, HomeState, Launch, ProcessId, find_hierarchy, group_name
from benthic.sandbox.linux.unix_sockets import listening, short_path
from benthic.sandbox.records import (
    CallResult,
    FunctionCall,
    Kind,
    Limits,
    Network,
    ProbeResult,
    Reason,
    SandboxSpec,
    SnapshotRef,
    Usage,
)

_ENTER = 'mount --bind "$1" "$2" && exec "$3" --listen-fd "$4"'


class BareMachine:
    def __init__(self, driver: "BareDriver", home: Path, process: ProcessId) -> None:
        self.home, self.process, self.driver = home, process, driver
        self.setup = JobSetup(uid=os.getuid(), gid=os.getgid(), cwd=str(driver.work))

    @property
    def group(self) -> Cgroup:
        return self.driver.group(self.home)

    async def connect(self) -> tuple[StreamReader, StreamWriter]:
        with short_path(self.home / "init.sock") as path:
            return await asyncio.open_unix_connection(path)

    async def open_network(self, guest: Guest, network: Network) -> None:
        """Here it is the machine's own, whatever the rules say."""

    async def freeze(self) -> None:
        if os.geteuid():
            raise NotSupported("freezing needs a control group; run the tests as root")
        self.group.freeze()
        while not self.group.is_frozen():
            await asyncio.sleep(0.001)

    async def thaw(self) -> None:
        self.group.thaw()

    async def snapshot(self, name: str) -> SnapshotRef:
        folder = self.driver.root / "store" / name
        await asyncio.to_thread(shutil.copytree, self.home / "work", folder, symlinks=True, dirs_exist_ok=True)
        return SnapshotRef(id=name, kind="container", seq=-1)

    async def usage(self) -> Usage:
        return Usage()

    async def death(self) -> tuple[Reason, str] | None:
        if self.process.is_alive():
            return None
        if (self.home / "reason").exists():
            return Reason((self.home / "reason").read_text()), "a test says so"
        return Reason.CRASHED, "its first process has ended"

    async def out_of_memory_kills(self) -> int:
        file = self.home / "memory_kills"
        return int(file.read_text()) if file.exists() else 0

    async def call(self, call: FunctionCall) -> CallResult:
        raise NotSupported("by this driver")

    async def destroy(self) -> None:
        await self.driver.remove(self.home)


class BareDriver:
    """See the module's docstring. `fail_starts` makes so many next starts fail."""

    kind: Kind = "container"
    name = "bare"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work = root / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        self.fail_starts = 0
        self.start_pause_s = 0.0
        self.num_started = 0
        self.num_starting = 0
        self.most_starting = 0

    def group(self, home: Path) -> Cgroup:
        return Cgroup(find_hierarchy(), group_name(home))

    async def probe(self) -> ProbeResult:
        return ProbeResult(kind=self.kind, driver=self.name, is_working=True, detail="bare")

    async def start(self, spec: SandboxSpec, home: Path, *, snapshot: SnapshotRef | None = None) -> BareMachine:
        self.num_starting += 1
        self.most_starting = max(self.most_starting, self.num_starting)
        try:
            await asyncio.sleep(self.start_pause_s)
            if self.fail_starts:
                self.fail_starts -= 1
                raise StartFailed("a test says so", stage="runtime")
            process = await asyncio.to_thread(self._start, home, snapshot)
        finally:
            self.num_starting -= 1
        self.num_started += 1
        return BareMachine(self, home, process)

    def _start(self, home: Path, snapshot: SnapshotRef | None) -> ProcessId:
        HomeState(home).record(driver=self.name)
        if snapshot is None:
            (home / "work").mkdir()
        else:
            shutil.copytree(self.root / "store" / snapshot.id, home / "work", symlinks=True)
        with listening(home / "init.sock") as listener:
            inner = ["/bin/sh", "-c", _ENTER, "sh", str(home / "work"), str(self.work), str(build_init())]
            as_root = ["--map-root-user"] if os.geteuid() else []
            spaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", *as_root]
            command = [*spaces, *inner, str(listener.fileno())]
            if not os.geteuid():
                self.group(home).create(Limits())
                command = Launch(group=self.group(home)).command(command)
            outer = subprocess.Popen(
                command,
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=open(home / "stderr", "wb"),  # noqa: SIM115 - the child's
                start_new_session=True,
            )
        process = ProcessId.of(outer.pid)
        assert process is not None
        HomeState(home).record(pid=process.pid, start_ticks=process.start_ticks)
        return process

    async def adopt(self, spec: SandboxSpec, home: Path) -> BareMachine | None:
        state = HomeState(home).load()
        if "pid" not in state:
            return None
        process = ProcessId(state["pid"], state["start_ticks"])
        return BareMachine(self, home, process) if process.is_alive() else None

    async def reconcile(self, homes: Container[Path]) -> list[str]:
        gone = []
        for home in (self.root / "homes").iterdir():
            if home not in homes:
                await self.remove(home)
                gone.append(f"bare {home.name}")
        return gone

    async def remove(self, home: Path) -> None:
        state = HomeState(home).load()
        if "pid" in state:
            process = ProcessId(state["pid"], state["start_ticks"])
            process.kill()
            await process.wait(10)
        if not os.geteuid():
            await self.group(home).remove()
