"""Mounts of EROFS files: one a layer a host, shared by every sandbox, so that the page cache holds each page once."""

import ctypes
import errno
import os
from pathlib import Path

from benthic.sandbox.errors import ImageError

_READ_ONLY, _NO_SUID, _NO_DEV = 1, 2, 4


def mount_erofs(image: Path, folder: Path) -> None:
    """Mounts an EROFS file read-only, without setuid programs and devices.

    Reads bypass the page cache of the file itself where its file system can: else each page would be held twice.

    Raises:
        ImageError: the kernel has no file-backed EROFS (before Linux 6.12), or this user may not mount.
    """
    folder.mkdir(exist_ok=True)
    code = _mount(image, folder, b"directio")
    if code in (errno.EINVAL, errno.EOPNOTSUPP):
        code = _mount(image, folder, b"")
    if code:
        raise ImageError(
            f"{image} cannot be mounted ({os.strerror(code)}); EROFS files need root and Linux 6.12, "
            'or make the store with format="folder"'
        )


def unmount(folder: Path) -> None:
    """Unmounts a folder; nothing happens if nothing is mounted there. Overlays that use it go on."""
    library = ctypes.CDLL(None, use_errno=True)
    lazily = 2
    if os.path.ismount(folder) and library.umount2(os.fsencode(folder), lazily):
        raise ImageError(f"{folder} cannot be unmounted: {os.strerror(ctypes.get_errno())}")


def _mount(image: Path, folder: Path, options: bytes) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    flags = ctypes.c_ulong(_READ_ONLY | _NO_SUID | _NO_DEV)
    failed = library.mount(os.fsencode(image), os.fsencode(folder), b"erofs", flags, options)
    return ctypes.get_errno() if failed else 0
