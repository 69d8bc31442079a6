"""Mounts by system calls: clones of folders with shifted owners, overlays of them, memory file systems, loop devices.

A layer on disk belongs to uids 0..65535. Each sandbox sees it through an id-mapped clone, so the same files belong to
that sandbox's own range of host uids and nothing is copied or chowned; what it writes comes to disk as 0..65535 again.

Linux 6.3 is needed (id-mapped tmpfs), and root.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from fcntl import ioctl
from functools import cache
from pathlib import Path

# The same numbers on every architecture: all are younger than the unified table.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH = 1, 4
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_IDMAP = 0x1, 0x2, 0x4, 0x100000
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
_MNT_DETACH = 2
_LOOP_CONFIGURE, _LOOP_CTL_GET_FREE = 0x4C0A, 0x4C82
_LO_FLAGS_AUTOCLEAR = 4
_LOOP_TRIES = 100


def clone(path: Path, *, id_map: int | None = None, is_read_only: bool = False) -> int:
    """A detached copy of the mount that a file or folder lies on, with that as its root.

    Args:
        id_map: a user namespace (`namespaces.id_map`) whose uids the owners are shown as.

    Returns:
        A descriptor; the copy goes when that is closed and it was attached nowhere.
    """
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    tree = _syscall(path, _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)
    wanted = _ATTR_NOSUID | _ATTR_NODEV | (_ATTR_RDONLY if is_read_only else 0)
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
    attributes = struct.pack("=4Q", wanted | (_ATTR_IDMAP if id_map is not None else 0), 0, _MS_PRIVATE, id_map or 0)
    try:
        _syscall(path, _MOUNT_SETATTR, tree, b"", _AT_EMPTY_PATH, attributes, ctypes.c_size_t(len(attributes)))
    except OSError:
        os.close(tree)
        raise
    return tree


def attach(tree: int, target: Path) -> None:
    """Puts a detached copy where it can be seen, in this thread's namespace, and closes its descriptor."""
    try:
        _syscall(target, _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(tree)


def mount_overlay(lower: Sequence[Path], upper: Path, work: Path, target: Path) -> None:
    """Shows folders as one: `lower` from the topmost to the base, and `upper`, which takes every change.

    Nothing is synced to disk (a sandbox does not outlive its host), and a renamed folder of a lower layer is copied,
    so that `upper` is a layer which means the same on any base.
    """
    options = (
        f"lowerdir={':'.join(map(str, lower))},upperdir={upper},workdir={work},"
        "volatile,redirect_dir=nofollow,metacopy=off,index=off"
    )
    assert len(options) < os.sysconf("SC_PAGE_SIZE"), "too many layers for one mount: merge them first"
    _mount("overlay", target, "overlay", _MS_NOSUID | _MS_NODEV, options)


def mount_tmpfs(target: Path, *, size_bytes: int, num_files: int, mode: int = 0o755) -> None:
    """A memory file system that is full at either limit."""
    options = f"size={size_bytes},nr_inodes={num_files},mode={mode:o}"
    _mount("tmpfs", target, "tmpfs", _MS_NOSUID | _MS_NODEV, options)


def mount_image(image: Path, target: Path, type_: str = "ext4", options: str = "") -> None:
    """A file system that lies in a file, through a loop device which goes with the mount."""
    number, device = _attach_loop(image)
    try:
        _mount(f"/dev/loop{number}", target, type_, _MS_NOSUID | _MS_NODEV, options)
    finally:
        os.close(device)  # a device whose mount failed goes with this, its last descriptor


def unmount(target: Path) -> bool:
    """Takes the topmost mount off a folder, at once even if in use; False if there is none."""
    return bool(_libc().umount2(os.fsencode(target), _MNT_DETACH) == 0)


def make_private() -> None:
    """Cuts this thread's mount namespace off: what is mounted here is seen nowhere else."""
    _mount("none", Path("/"), "", _MS_REC | _MS_PRIVATE, "")


def mounts_below(folder: Path) -> list[Path]:
    """Where something is mounted at or below a folder, the deepest and latest first."""
    prefix = str(folder.resolve())
    lines = Path("/proc/thread-self/mountinfo").read_text().splitlines()
    points = [line.split(" ")[4].encode().decode("unicode_escape") for line in lines]  # spaces are written in octal
    return [Path(point) for point in reversed(points) if point == prefix or point.startswith(prefix + "/")]


def _attach_loop(image: Path) -> tuple[int, int]:
    """The number and a descriptor of a loop device over a file."""
    with open(image, "r+b") as backing, open("/dev/loop-control", "r+b", buffering=0) as control:
        for _ in range(_LOOP_TRIES):
            number = ioctl(control, _LOOP_CTL_GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDWR | os.O_CLOEXEC)
            # struct loop_config: fd, block_size, struct loop_info64 with lo_flags at its byte 52, 8 reserved words
            config = struct.pack("=II52xI240x", backing.fileno(), 0, _LO_FLAGS_AUTOCLEAR)
            try:
                ioctl(device, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY:  # else somebody else took the free one first
                    raise
            else:
                return number, device
    raise OSError(errno.EBUSY, "no free loop device", str(image))


def _mount(source: str, target: Path, type_: str, flags: int, options: str) -> None:
    arguments = (source.encode(), os.fsencode(target), type_.encode(), ctypes.c_ulong(flags), options.encode())
    _check(target, _libc().mount(*arguments))


def _syscall(path: Path, number: int, *arguments: object) -> int:
    return _check(path, _libc().syscall(ctypes.c_long(number), *arguments))


def _check(path: Path, result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    return result


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
