"""One sandbox's control group: limits, life and death of all its processes, and what the kernel knows about them.

A group is a folder in each tree of the `Hierarchy`. Processes join before they become the sandbox's program (see
`launch.py`), so nothing ever runs outside its limits. `kill` ends everything inside, whatever it forks meanwhile.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from benthic.errors import SandboxError
from benthic.sandbox.linux.cgroup_mounts import Hierarchy, delegate_down
from benthic.sandbox.records import Limits, Usage

_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A group by its name, such as `5f3a9c01/0123456789ab`, whether or not it exists yet."""

    hierarchy: Hierarchy
    name: str

    def create(self, limits: Limits, *, extra_memory_bytes: int = 0) -> None:
        """Makes the group and sets its limits.

        Args:
            limits: of which cpus, cpu_class, memory_bytes and num_processes are set here.
            extra_memory_bytes: allowed on top, for what a driver itself needs inside (an emulator, an init).

        Raises:
            OSError: the kernel refuses.
        """
        for tree in self.hierarchy.trees:
            folder = tree / self.name
            _make(folder)
            if tree == self.hierarchy.version2:
                for above in (*reversed(folder.relative_to(tree).parents),):
                    delegate_down(tree / above, self.hierarchy.version2_controllers)
        self._limit_cpu(limits)
        self._limit_memory(limits.memory_bytes + extra_memory_bytes)
        self._set("pids", "pids.max", "pids.max", str(limits.num_processes))

    def exists(self) -> bool:
        """Whether any of its folders does."""
        return any(folder.is_dir() for folder in self.folders())

    def folders(self) -> list[Path]:
        """One in each tree."""
        return [tree / self.name for tree in self.hierarchy.trees]

    def join_files(self) -> list[Path]:
        """A process that writes 0 into each of these is inside from then on, with all its later children."""
        return [folder / "cgroup.procs" for folder in self.folders()]

    def add(self, pid: int) -> None:
        """Moves a process in; what it has started before stays where it is."""
        for file in self.join_files():
            file.write_text(str(pid))

    def pids(self) -> list[int]:
        """Every process inside, in groups further down too."""
        found: set[int] = set()
        for folder in self.folders():
            for below, _, _ in os.walk(folder):
                found.update(_pids_of(Path(below)))
        return sorted(found)

    def freeze(self) -> None:
        """Stops every process where it is; returns before all have stopped (see `is_frozen`)."""
        self._freeze(True)

    async def stop(self, timeout_s: float = 10.0) -> None:
        """Freezes, and waits until every process stands still.

        Raises:
            SandboxError: they did not in time, and go on.
        """
        self.freeze()
        deadline = time.monotonic() + timeout_s
        while not self.is_frozen():
            if time.monotonic() > deadline:
                self.thaw()
                raise SandboxError(f"sandbox {Path(self.name).name} did not stop within {timeout_s:g} s; try again")
            await asyncio.sleep(0.001)

    @contextlib.asynccontextmanager
    async def stopped(self) -> AsyncGenerator[None, None]:
        """Every process stands still while the block runs, and goes on unless it stood still before."""
        was_frozen = self.is_frozen()
        await self.stop()
        try:
            yield
        finally:
            if not was_frozen:
                self.thaw()

    def thaw(self) -> None:
        """Lets them go on."""
        self._freeze(False)

    def is_frozen(self) -> bool:
        """Whether every process has stopped."""
        if "freezer" in self.hierarchy.version1:
            state = self.hierarchy.version1["freezer"] / self.name / "freezer.state"
            return state.read_text().strip() == "FROZEN"
        folder = self._version2()
        return folder is not None and "frozen 1" in (folder / "cgroup.events").read_text()

    async def kill(self, timeout_s: float = 10.0) -> bool:
        """Ends every process inside with SIGKILL and waits for that; whether none is left."""
        deadline = time.monotonic() + timeout_s
        pause_s = 0.001
        while self.pids():
            with contextlib.suppress(FileNotFoundError):  # removed by another meanwhile
                self._kill_once()
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return True

    async def remove(self, timeout_s: float = 10.0) -> bool:
        """Kills, then removes the folders; whether nothing is left. May be called in any state, as often as wanted."""
        if not await self.kill(timeout_s):
            return False
        for _ in range(50):  # a group stays busy for a moment after its last process is gone
            for folder in self.folders():
                _remove_tree(folder)
            if not self.exists():
                self._remove_empty_parents()
                return True
            await asyncio.sleep(0.01)
        return False

    def _remove_empty_parents(self) -> None:
        for tree in (*self.hierarchy.trees, *self.hierarchy.others):
            for name in (Path(self.name), *Path(self.name).parents):
                if name.name:
                    with contextlib.suppress(OSError):  # other groups are in it, or it was never made
                        (tree / name).rmdir()

    def usage(self) -> Usage:
        """Of the whole group since it was made."""
        memory = self._read("memory", "memory.max_usage_in_bytes", "memory.peak")
        return Usage(cpu_s=self._cpu_s(), peak_memory_bytes=int(memory or 0), written_bytes=self._written_bytes())

    def memory_bytes(self) -> int:
        """In use now, page cache and memory file systems included."""
        return int(self._read("memory", "memory.usage_in_bytes", "memory.current") or 0)

    def out_of_memory_kills(self) -> int:
        """How many processes the kernel has ended because the group had no memory left."""
        return _keyed(self._read("memory", "memory.oom_control", "memory.events")).get("oom_kill", 0)

    def refused_processes(self) -> int:
        """How often a fork has failed at the limit of processes."""
        return _keyed(self._read("pids", "pids.events", "pids.events")).get("max", 0)

    def _version2(self) -> Path | None:
        """Its folder there, if it is one that kills and freezes (Linux 5.14; the root group has neither)."""
        if self.hierarchy.version2 is None:
            return None
        folder = self.hierarchy.version2 / self.name
        return folder if (folder / "cgroup.kill").exists() else None

    def _freeze(self, is_wanted: bool) -> None:
        # Version 1 first: what a container runtime has started is in its groups, and perhaps in no other.
        if "freezer" in self.hierarchy.version1:
            state = self.hierarchy.version1["freezer"] / self.name / "freezer.state"
            state.write_text("FROZEN" if is_wanted else "THAWED")
        elif (folder := self._version2()) is not None:
            (folder / "cgroup.freeze").write_text(str(int(is_wanted)))

    def _kill_once(self) -> None:
        folder = self._version2()
        if folder is not None:  # it also reaches what is being forked right now
            (folder / "cgroup.kill").write_text("1")
        # In this order: one that dies between the two looks is in the first alone.
        inside: set[int] = set() if folder is None else set(_pids_of(folder))
        if set(self.pids()) - inside:
            # Frozen processes fork no others while the list is worked off.
            self._freeze(True)
            for pid in self.pids():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._freeze(False)  # what version 1 has frozen takes no signal

    def _limit_cpu(self, limits: Limits) -> None:
        quota_us = max(1000, round(limits.cpus * _PERIOD_US))
        if "cpu" in self.hierarchy.version1:
            self._set("cpu", "cpu.cfs_period_us", "", str(_PERIOD_US))
        self._set("cpu", "cpu.cfs_quota_us", "cpu.max", str(quota_us), f"{quota_us} {_PERIOD_US}")
        if limits.cpu_class == "batch":
            try:
                self._set("cpu", "cpu.idle", "cpu.idle", "1")
            except OSError:  # before Linux 5.15
                self._set("cpu", "cpu.shares", "cpu.weight", "2", "1")

    def _limit_memory(self, num_bytes: int) -> None:
        self._set("memory", "memory.limit_in_bytes", "memory.max", str(num_bytes))
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            self._set("memory", "memory.memsw.limit_in_bytes", "memory.swap.max", str(num_bytes), "0")

    def _set(self, controller: str, version1: str, version2: str, value: str, value2: str | None = None) -> None:
        """Writes a limit wherever its controller is, if anywhere."""
        if controller in self.hierarchy.version1:
            (self.hierarchy.version1[controller] / self.name / version1).write_text(value)
        elif self.hierarchy.version2 is not None and controller in self.hierarchy.version2_controllers:
            (self.hierarchy.version2 / self.name / version2).write_text(value if value2 is None else value2)

    def _read(self, controller: str, version1: str, version2: str) -> str:
        folder = self.hierarchy.version1.get(controller)
        if folder is not None:
            file = folder / self.name / version1
        elif self.hierarchy.version2 is not None:
            file = self.hierarchy.version2 / self.name / version2
        else:
            return ""
        try:
            return file.read_text()
        except OSError:
            return ""  # removed, or this kernel does not count that

    def _cpu_s(self) -> float:
        if "cpuacct" in self.hierarchy.version1:
            return int(self._read("cpuacct", "cpuacct.usage", "") or 0) / 1e9
        return _keyed(self._read("cpuacct", "", "cpu.stat")).get("usage_usec", 0) / 1e6

    def _written_bytes(self) -> int:
        if "blkio" in self.hierarchy.version1:
            lines = self._read("blkio", "blkio.throttle.io_service_bytes", "").splitlines()
            return sum(int(line.split()[2]) for line in lines if line.split()[1:2] == ["Write"])
        words = self._read("io", "", "io.stat").split()
        return sum(int(word.removeprefix("wbytes=")) for word in words if word.startswith("wbytes="))


def _make(folder: Path) -> None:
    for _ in range(3):  # its parent may be removed, empty as it was, between the two steps of this
        with contextlib.suppress(FileNotFoundError):
            return folder.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)


def _pids_of(folder: Path) -> list[int]:
    try:
        text = (folder / "cgroup.procs").read_text()
    except OSError:
        return []  # the group was removed meanwhile
    # 0 stands for a process that this one's pid namespace does not see, and signals to 0 would reach ourselves.
    return [pid for pid in map(int, text.split()) if pid > 0]


def _keyed(text: str) -> dict[str, int]:
    """A flat keyed file: `name number` a line."""
    pairs = [line.split() for line in text.splitlines()]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def _remove_tree(folder: Path) -> None:
    for below, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(below)
