"""Where this machine keeps its control groups: version 1, version 2, or both side by side (hybrid).

On a hybrid machine every controller is mounted as version 1, and a version 2 tree without controllers lies beside
them; that tree still kills and freezes whole groups at once, so processes join it too.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

CONTROLLERS = ("cpu", "cpuacct", "memory", "pids", "freezer", "blkio")
"""Those of version 1 that a sandbox joins; version 2 has cpuacct inside cpu, blkio as io, and freezes by itself."""
BASE = "benthic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """The folders below which groups are made, one a tree."""

    version1: Mapping[str, Path]
    """Controller -> folder; controllers that are mounted together share one."""
    version2: Path | None
    version2_controllers: frozenset[str] = frozenset()
    """Those that groups of the version 2 tree really get."""
    others: tuple[Path, ...] = ()
    """Trees of version 1 that a sandbox does not need: container runtimes make groups there too, to be removed."""

    @property
    def mode(self) -> Literal["v1", "v2", "hybrid", "none"]:
        """In the field's words."""
        if self.version1:
            return "hybrid" if self.version2 else "v1"
        return "v2" if self.version2 else "none"

    @property
    def trees(self) -> tuple[Path, ...]:
        """Every folder in which a group is made, each once."""
        trees = list(dict.fromkeys(self.version1.values()))
        return tuple(trees if self.version2 is None else [*trees, self.version2])

    @property
    def missing(self) -> tuple[str, ...]:
        """Which limits cannot be set here: of cpu, memory and pids."""
        return tuple(
            name for name in ("cpu", "memory", "pids") if name not in self.version1.keys() | self.version2_controllers
        )


@dataclass(frozen=True, slots=True)
class _Mount:
    folder: Path
    type: str
    options: frozenset[str]


def find_hierarchy(
    mountinfo: Path = Path("/proc/self/mountinfo"), own_groups: Path = Path("/proc/self/cgroup")
) -> Hierarchy:
    """What this process may use; `mode` is none where it may write nowhere (an ordinary user without delegation)."""
    mounts = _cgroup_mounts(mountinfo.read_text())
    version1 = {
        controller: mount.folder / BASE
        for mount in mounts
        if mount.type == "cgroup" and os.access(mount.folder, os.W_OK)
        for controller in CONTROLLERS
        if controller in mount.options
    }
    others = tuple(
        mount.folder / BASE
        for mount in mounts
        if mount.type == "cgroup" and mount.folder / BASE not in version1.values() and os.access(mount.folder, os.W_OK)
    )
    parent = next((_writable_parent(mount.folder, own_groups) for mount in mounts if mount.type == "cgroup2"), None)
    if parent is None:
        return Hierarchy(version1=version1, version2=None, others=others)
    controllers = _delegate(parent, {"cpu", "memory", "pids", "io"} - version1.keys())
    return Hierarchy(version1=version1, version2=parent / BASE, version2_controllers=controllers, others=others)


def delegate_down(folder: Path, controllers: frozenset[str]) -> None:
    """Lets the groups made inside a version 2 group have these controllers."""
    for controller in controllers:
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _cgroup_mounts(mountinfo: str) -> list[_Mount]:
    mounts = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        type_, _, options = after.split(" ", 2)
        if type_ in ("cgroup", "cgroup2"):
            # Spaces and the like are written in octal.
            folder = re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), before.split(" ")[4])
            mounts.append(_Mount(Path(folder), type_, frozenset(options.split(","))))
    return mounts


def _writable_parent(mount: Path, own_groups: Path) -> Path | None:
    """The top, or for an ordinary user the lowest group above this process's own that was delegated to him."""
    if os.access(mount / "cgroup.procs", os.W_OK):
        return mount
    own = next((line[4:] for line in own_groups.read_text().splitlines() if line.startswith("0::/")), "")
    # Its own group holds processes, and such a group may hand no controllers to groups inside: begin one above.
    for folder in (mount / own).parents:
        if folder == mount or mount not in folder.parents:
            return None
        if os.access(folder / "cgroup.procs", os.W_OK):
            return folder
    return None


def _delegate(parent: Path, wanted: set[str]) -> frozenset[str]:
    """Turns on what can be turned on for groups inside; a parent that holds processes itself may refuse."""
    present = set((parent / "cgroup.controllers").read_text().split())
    for controller in sorted(wanted & present):
        try:
            delegate_down(parent, frozenset({controller}))
        except OSError:
            continue
    return frozenset(wanted & set((parent / "cgroup.subtree_control").read_text().split()))
