"""A jail: bubblewrap under host uids of its own, with Benthic's init as first process.

Run as root, each jail has two host uids, root inside and the ordinary user, neither of them root outside: bubblewrap
itself is started under the first of them, since one that is started as the host's root reads every file of it. What
needs the host's root (memory file systems with a limit of files, layers in folders that only root may enter) is
mounted before that, in a mount namespace that nobody else sees and that ends with the jail.

Run by an ordinary user, a jail has this one user, who is root inside, and no limit of files.
"""

import json
import os
import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benthic.sandbox.errors import StartFailed
from benthic.sandbox.linux import Launch, ProcessId, mounts, spawn_detached
from benthic.sandbox.linux.namespaces import bound_segments, in_private_mounts
from benthic.sandbox.records import Limits

USER_ID = 1000
STAGE = Path("/run/benthic/mnt")
"""Where mounts are put together; an empty folder for everybody else."""
INIT = "/dev/init"
"""Init's program inside: of all folders, only /dev is a jail's own whatever the image has."""
LOG = "bwrap.log"
START_LIMIT_S = 20.0
_INFO, _GO, _LISTENER = 11, 12, 13
_ISOLATION = (
    *("--unshare-user", "--uid", "0", "--gid", "0", "--unshare-pid", "--unshare-net", "--unshare-ipc"),
    *("--unshare-uts", "--hostname", "sandbox", "--unshare-cgroup-try", "--as-pid-1", "--new-session"),
    *("--clearenv", "--cap-drop", "ALL"),
)
_CAPABILITIES = ("CAP_KILL", "CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
"""Init's, over its own user namespace: to become the ordinary user and to end what he has started."""
_HOST_FOLDERS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr")
_HOST_SETTINGS = ("alternatives", "ld.so.cache", "localtime")
_OWN_SETTINGS = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/work:/bin/sh\n",
    "group": "root:x:0:\nuser:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_DISK = {"work": ("/work", USER_ID, 0o755), "tmp": ("/tmp", 0, 0o1777), "shm": ("/dev/shm", 0, 0o1777)}
"""Folder of a jail's disk -> where it is seen, its owner, its mode."""
_MASKED = ("keys", "key-users", "timer_list", "sched_debug", "kallsyms", "config.gz")
"""Files of /proc that tell of the whole machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """What one jail is made of."""

    home: Path
    launch: Launch
    """Its control group, and the first of its uids; None for an ordinary user's own."""
    limits: Limits
    init: Path
    layers: Sequence[Path] = ()
    """Folders, lowest first; none: a view of the host's programs, without its settings and data."""

    @property
    def disk_bytes(self) -> int:
        """Of /work, /tmp and /dev/shm together: less than the memory they lie in, so that a full disk says so."""
        return min(self.limits.disk_bytes, self.limits.memory_bytes // 2)

    def start(self, listener: int) -> ProcessId:
        """Starts it and returns its first process; blocks for some milliseconds.

        Args:
            listener: a descriptor of the listening socket that init takes over.

        Raises:
            StartFailed: bubblewrap or the kernel refuses; the message has bubblewrap's words.
            OSError: the kernel refuses a mount.
        """
        if self.launch.uid is None:
            settings = self.home / "settings"
            settings.mkdir()
            return self._spawn(
                listener, settings, self.layers[0] if self.layers else None, self._own_disks(), self.init
            )
        STAGE.mkdir(mode=0o755, parents=True, exist_ok=True)
        return in_private_mounts(lambda: self._start_staged(listener))

    def _start_staged(self, listener: int) -> ProcessId:
        """As root: everything that the jail's uid could not reach or limit, mounted where it can."""
        mounts.mount_tmpfs(STAGE, size_bytes=1 << 18, num_files=64)
        settings, disk, root, init = (STAGE / name for name in ("settings", "disk", "root", "init"))
        for folder in (settings, disk, root):
            folder.mkdir()
        init.touch()
        mounts.attach(mounts.clone(self.init, is_read_only=True), init)
        if len(self.layers) == 1:
            mounts.attach(mounts.clone(self.layers[0], is_read_only=True), root)
        own_files = 8 if len(self.layers) > 1 else 4
        mounts.mount_tmpfs(disk, size_bytes=self.disk_bytes, num_files=self.limits.num_files + own_files)
        if len(self.layers) > 1:
            for name in ("changes", "work-of-changes"):  # overlayfs wants them; nobody can write through it
                (disk / name).mkdir()
            mounts.mount_overlay(self.layers[::-1], disk / "changes", disk / "work-of-changes", root)
        arguments = []
        assert self.launch.uid is not None
        for name, (target, uid, mode) in _DISK.items():
            (disk / name).mkdir()
            (disk / name).chmod(mode)
            os.chown(disk / name, self.launch.uid + uid, self.launch.uid + uid)
            arguments += ["--bind", str(disk / name), target]
        return self._spawn(listener, settings, root if self.layers else None, arguments, init)

    def _own_disks(self) -> list[str]:
        """As an ordinary user: three memory file systems, which share the limit unevenly."""
        shares = {"/work": 8, "/tmp": 6, "/dev/shm": 2}
        sizes = [(target, self.disk_bytes * share // 16) for target, share in shares.items()]
        return [word for target, size in sizes for word in ("--size", str(size), "--tmpfs", target)]

    def _spawn(self, listener: int, settings: Path, root: Path | None, disks: Sequence[str], init: Path) -> ProcessId:
        is_mapped = self.launch.uid is not None
        arguments = [*_ISOLATION, "--info-fd", str(_INFO), *(["--userns-block-fd", str(_GO)] if is_mapped else [])]
        arguments += _each("--cap-add", *_CAPABILITIES) if is_mapped else []
        arguments += _host_view(settings) if root is None else _image_view(root)
        arguments += ["--proc", "/proc", "--dev", "/dev", *disks, "--ro-bind", str(init), INIT]
        masked = [f"/proc/{name}" for name in _MASKED if Path("/proc", name).exists()]
        arguments += [word for path in masked for word in ("--ro-bind", "/dev/null", path)]
        if is_mapped:  # all terminals of a host share one number, and this mount takes no limit: init alone makes them
            arguments += ["--chmod", "0600", "/dev/pts/ptmx"]
        arguments += _each("--remount-ro", "/dev", "/") + [
            "--chdir",
            "/work",
            "--",
            INIT,
            "--listen-fd",
            str(_LISTENER),
        ]
        with (self.home / LOG).open("wb") as log, _pipe() as (info, info_there), _pipe() as (go_there, go):
            descriptors = {2: log, _INFO: info_there, _GO: go_there}
            numbers = {there: file.fileno() for there, file in descriptors.items()} | {_LISTENER: listener}
            spawn_detached(self.launch.command(["bwrap", *arguments]), numbers)
            info_there.close()
            pid = self._first_process(info)
            if self.launch.uid is not None:
                _map_ids(pid, self.launch.uid)
                bound_segments(pid, self.disk_bytes, root_uid=self.launch.uid)
            go.write(b"1")
            process = ProcessId.of(pid)
        if process is None:
            raise self._refused()
        return process

    def _first_process(self, info: IO[bytes]) -> int:
        """What bubblewrap says of the process that it has made."""
        text = b""
        waiting = select.poll()
        waiting.register(info, select.POLLIN)
        while b"}" not in text:
            if not waiting.poll(START_LIMIT_S * 1000):
                raise StartFailed(f"bubblewrap made no process within {START_LIMIT_S:g} s", stage="bubblewrap")
            if not (piece := info.read(4096)):
                raise self._refused()
            text += piece
        return int(json.loads(text)["child-pid"])

    def _refused(self) -> StartFailed:
        words = (self.home / LOG).read_text(errors="replace").strip()
        return StartFailed(f"bubblewrap refuses: {words or 'it ended without a word'}", stage="bubblewrap")


def _map_ids(pid: int, first: int) -> None:
    """Root and the ordinary user inside are two uids of the host that nobody else has."""
    for kind in ("uid", "gid"):
        Path(f"/proc/{pid}/{kind}_map").write_text(f"0 {first} 1\n{USER_ID} {first + USER_ID} 1\n")


def _host_view(settings: Path) -> list[str]:
    """The host's programs and libraries; no settings but those that programs need to start."""
    arguments = []
    for name in _HOST_FOLDERS:
        folder = Path("/", name)
        if folder.is_symlink():
            arguments += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            arguments += ["--ro-bind", str(folder), str(folder)]
    arguments += ["--perms", "0755", "--dir", "/etc"]
    for name, text in _OWN_SETTINGS.items():
        (settings / name).write_text(text)
        (settings / name).chmod(0o644)
        arguments += ["--ro-bind", str(settings / name), f"/etc/{name}"]
    for name in _HOST_SETTINGS:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return [*arguments, "--dir", "/root"]


def _image_view(root: Path) -> list[str]:
    """Every entry of an image's root but those that a jail has of its own."""
    arguments = []
    for entry in sorted(root.iterdir()):
        if entry.name in ("proc", "dev", "sys", "work", "tmp"):
            continue
        if entry.is_symlink():
            arguments += ["--symlink", os.readlink(entry), f"/{entry.name}"]
        else:
            arguments += ["--ro-bind", str(entry), f"/{entry.name}"]
    return arguments


def _each(option: str, *values: str) -> list[str]:
    return [word for value in values for word in (option, value)]


@contextmanager
def _pipe() -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as reader, open(writing, "wb", buffering=0) as writer:
        yield reader, writer
