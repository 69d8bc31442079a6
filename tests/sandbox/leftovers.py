"""Everything on this machine that sandboxes of state roots below a folder still have; what is listed was left behind.

Several workers test at once, each in a folder of its own. So nothing counts by its looks alone: it must name the
folder, or the tag of a state root below it, or belong to a process that does. What is meant to stay is not listed:
a store's layers, images, disks, templates and snapshots; trajectories with their keys; empty disks by size.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from benthic.sandbox.linux import ProcessId, UidPool, root_tag
from benthic.sandbox.linux.cgroup_mounts import BASE

_PROC = Path("/proc")
_ID = re.compile(r"[0-9a-f]{12}")
_KEPT_OF_HOLDERS = "snapshot-"


def left(folder: Path) -> list[str]:
    """One line for each thing, with what it is and where."""
    roots = state_roots(folder)
    tags = {root_tag(root) for root in roots}
    return [
        *_processes(folder, tags),
        *_zombies(),
        *_mounts(folder),
        *_groups(tags),
        *_loop_devices(folder),
        *_sockets(folder),
        *_claims(folder),
        *(line for root in roots for line in _files(root)),
    ]


def state_roots(folder: Path) -> list[Path]:
    """Folders that were used as state roots, below one or that itself."""
    found = []
    for path, folders, _ in os.walk(folder):
        if {"homes", "store"} & set(folders):
            found.append(Path(path))
            folders[:] = [name for name in folders if name not in ("homes", "store", "trajectories", "keys", "disks")]
        elif len(Path(path).relative_to(folder).parts) >= 4:
            folders.clear()
    return found


def _processes(folder: Path, tags: set[str]) -> Iterator[str]:
    """By their control groups, command lines and folders; with them go the namespaces that they alone are in.

    Not by the mounts that a process sees: a neighbour's namespace begins as a copy of this one, with all that is ours.
    """
    marks = [str(folder).encode(), *(f"benthic-{tag}-".encode() for tag in tags)]
    groups = [f"/{BASE}/{tag}/".encode() for tag in tags]
    above = _above()
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal() or int(entry.name) in above or ProcessId.of(int(entry.name)) is None:
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            if any(group in (entry / "cgroup").read_bytes() for group in groups):
                yield f"process {entry.name} in a control group: {_shown(words)}"
            elif any(mark in words for mark in marks) and not _is_test_runner(words):
                yield f"process {entry.name}: {_shown(words)}"
            elif any(os.readlink(entry / link).startswith(str(folder)) for link in ("cwd", "root")):
                yield f"process {entry.name} stands in the folder: {_shown(words)}"
        except OSError:  # ended meanwhile, or a thread of the kernel
            continue


def _above() -> set[int]:
    """This process and those that wait for it."""
    found, pid = set(), os.getpid()
    while pid > 0:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def _is_test_runner(words: bytes) -> bool:
    return b"pytest" in words or b"execnet" in words


def _zombies() -> Iterator[str]:
    """Children of this very process that ended and were not waited for."""
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            name, _, rest = (entry / "stat").read_text(errors="replace").rpartition(")")
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if state == "Z" and int(parent) == os.getpid():
            yield f"zombie {name})"


def _mounts(folder: Path) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if str(folder) in line:
            yield f"mount {line}"


def _groups(tags: set[str]) -> Iterator[str]:
    """In every hierarchy that is mounted, whether sandboxes join it or not; runtimes also make some further down."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup" in line:
            top = Path(line.split(" ")[4])
            for tag in tags:
                for base in (top / BASE, *top.glob(f"*/{BASE}")):
                    yield from (
                        f"control group {path}" for path in (base / tag, *(base / tag).glob("*/")) if path.is_dir()
                    )


def _loop_devices(folder: Path) -> Iterator[str]:
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = file.read_text()
        except OSError:
            continue
        if backing.startswith(str(folder)) and not _is_copied(file.parts[3]):
            yield f"loop device {file.parts[3]} over {backing.strip()}"


def _is_copied(loop: str) -> bool:
    """Whether a mount namespace that was copied from this one still has it: it goes when that does."""
    mine = os.readlink("/proc/self/ns/mnt")
    for entry in _PROC.iterdir():
        with contextlib.suppress(OSError):
            is_other = entry.name.isdecimal() and os.readlink(entry / "ns/mnt") != mine
            if is_other and f"/dev/{loop} " in (entry / "mountinfo").read_text():
                return True
    return False


def _sockets(folder: Path) -> Iterator[str]:
    for line in Path("/proc/net/unix").read_text().splitlines():
        if str(folder) in line:
            yield f"open unix socket {line.split()[-1]}"


def _claims(folder: Path) -> Iterator[str]:
    for uid, home in UidPool().owners().items():
        if folder in home.parents:
            yield f"claim of host uid {uid} for {home}"


def _files(root: Path) -> Iterator[str]:
    """Of one state root: what belongs to a home, was never finished, or is neither a file, a folder nor a link."""
    store = root / "store"
    # Where no host was, homes were made by the test of a driver, whose own they are.
    homes = [root / "homes"] if (root / "trajectories").exists() else []
    for parent in (*homes, store / "incoming", store / "mounts"):
        yield from (f"file {path}" for path in _listed(parent))
    for holder in _listed(store / "owners"):
        if not holder.name.startswith(_KEPT_OF_HOLDERS):
            yield f"holder of layers {holder}"
    for mark in (store / "held").glob("*/*"):
        if not (store / "owners" / mark.name).exists():
            yield f"mark of no holder {mark}"
    for path in _listed(root / "trajectories"):
        if _ID.fullmatch(path.name) and not (path / "sandbox.json").exists():
            yield f"trajectory without a record {path}"
    # Elsewhere, where several hosts share them, trajectories are not looked for.
    for key in _listed(root / "keys") if (root / "trajectories").is_dir() else ():
        if not (root / "trajectories" / os.readlink(key)).exists():
            yield f"key of nothing {key}"
    for name in ("trajectories", "keys", "disks", "store/names", "store/images", "store/layers", "store/owners"):
        for path, folders, files in os.walk(root / name):
            yield from (f"draft {Path(path, file)}" for file in [*files, *folders] if file.startswith("."))
            if name == "store/layers":
                folders.clear()  # what an image holds is the image's
    for name in ("homes", "store", "trajectories", "keys", "disks"):
        for parent, folders, files in os.walk(root / name):
            if parent == str(store / "layers"):
                folders.clear()
            for path in (Path(parent, file) for file in files):
                mode = os.lstat(path).st_mode
                if stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode):
                    yield f"socket or pipe {path}"


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _shown(words: bytes) -> str:
    return words.replace(b"\0", b" ").decode(errors="replace")[:200]


def left_after(folder: Path, *, limit_s: float) -> list[str]:
    """The same, once what ends by itself has had some time to."""
    deadline = time.monotonic() + limit_s
    while (found := left(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
