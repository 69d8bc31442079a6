"""Work in other namespaces, each in a thread of its own that never comes back to this process's ones.

A thread may leave its process's mount or network namespace alone; what it opens there (a socket, a started program)
stays there, while every other thread sees nothing of it.
"""

import ctypes
import os
import platform
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benthic.sandbox.linux import mounts

_CLONE_FS, _CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWNET = 0x200, 0x20000, 0x8000000, 0x40000000
_SETRESUID = {"x86_64": 117, "aarch64": 147}
_MAX_QUEUES = 16
_MAX_WATCHES = {"max_inotify_instances": 16, "max_inotify_watches": 8192}
_Made = TypeVar("_Made")


def in_private_mounts(work: Callable[[], _Made]) -> _Made:
    """Runs `work` where its mounts are seen by nobody but it and the programs that it starts; blocks until done.

    The mounts go with the last of these programs, however it ends.
    """

    def enter() -> None:
        _check(_libc().unshare(_CLONE_FS | _CLONE_NEWNS), "unshare the mount namespace")
        mounts.make_private()

    return _in_thread(enter, work)


def in_network_of(pid: int, work: Callable[[], _Made]) -> _Made:
    """Runs `work` in a process's network namespace; the sockets that it makes stay there. Blocks until done."""
    return _in_thread(lambda: _enter(pid, "net", _CLONE_NEWNET), work)


def bound_segments(pid: int, num_bytes: int, *, root_uid: int) -> None:
    """Bounds the System V shared memory of a process's namespace, and ends each segment with its last user.

    Else a segment outlives everything that used it, and a process that is ended for memory frees none of it.

    Args:
        root_uid: the host's uid of root inside, to whom these settings belong.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    settings = {"shm_rmid_forced": 1, "shmall": num_bytes // page, "msgmni": _MAX_QUEUES}

    def write() -> None:
        # Of this thread alone, which libc's function would not do; it ends with `write`.
        number = _SETRESUID[platform.machine()]
        _check(_libc().syscall(ctypes.c_long(number), -1, root_uid, -1), f"become {root_uid}")
        for name, value in settings.items():
            Path("/proc/sys/kernel", name).write_text(str(value))

    _in_thread(lambda: _enter(pid, "ipc", _CLONE_NEWIPC), write)


def bound_watches(pid: int) -> None:
    """Bounds what the user namespace of a process may have of inotify, which also counts as its maker's own.

    Else one container could take all that the host's root may have, and no other and no daemon of the host got any.

    Raises:
        OSError: it cannot be bounded.
    """
    lines = "".join(f"echo {most} >/proc/sys/user/{name}\n" for name, most in _MAX_WATCHES.items())
    command = ["nsenter", f"--user=/proc/{pid}/ns/user", "sh", "-ec", lines]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"inotify of process {pid} cannot be bounded: {done.stderr.strip()}")


def id_map(first: int, size: int = 1 << 16) -> int:
    """A user namespace to give to `mounts.clone`: ids 0, 1, .. on disk are shown as host ids first, first + 1, ..

    The host's root, as whom overlays keep house in their work folders, is on disk as id `size`, which nobody inside
    has. Nobody is ever in this namespace.

    Returns:
        A descriptor.
    """
    with subprocess.Popen(
        ["unshare", "--user", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={"PATH": os.defpath}
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdin.write(b".")
        if holder.stdout.read(1) != b".":
            raise OSError("user namespaces are not allowed here; see /proc/sys/user/max_user_namespaces")
        for kind in ("uid", "gid"):
            Path(f"/proc/{holder.pid}/{kind}_map").write_text(f"0 {first} {size}\n{size} 0 1\n")
        return os.open(f"/proc/{holder.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


def _enter(pid: int, name: str, kind: int) -> None:
    namespace = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc().setns(namespace, kind), f"enter the {name} namespace of process {pid}")
    finally:
        os.close(namespace)


def _in_thread(enter: Callable[[], None], work: Callable[[], _Made]) -> _Made:
    made: list[_Made] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            enter()
            made.append(work())
        except BaseException as error:  # noqa: BLE001 - carried over to the caller
            failed.append(error)

    thread = threading.Thread(target=run, name="namespace", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)}: cannot {what}")
