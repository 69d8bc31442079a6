"""Work in other namespaces, each in a thread of its own that never comes back to this process's ones.

A thread may leave its process's mount or network namespace alone; what it opens there (a socket, a started program)
stays there, while every other thread sees nothing of it.
"""

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benthic.sandbox.linux import mounts

_CLONE_FS, _CLONE_NEWNS, _CLONE_NEWNET = 0x200, 0x20000, 0x40000000
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

    def enter() -> None:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc().setns(namespace, _CLONE_NEWNET), f"enter the network of process {pid}")
        finally:
            os.close(namespace)

    return _in_thread(enter, work)


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
