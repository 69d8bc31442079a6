"""Firecracker's driver over the program that plays it, on any machine that has bubblewrap."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benthic.sandbox.boot import Kernel
from benthic.sandbox.drivers.firecracker import FirecrackerDriver
from benthic.sandbox.images import Store

FAKE = Path(__file__).with_name("fake_firecracker.py")


@contextmanager
def played_firecracker() -> Iterator[Path]:
    """The program, where a user of its own can start it, for as long as the block runs."""
    for program, package in (("bwrap", "bubblewrap"), ("mkfs.ext4", "e2fsprogs"), ("mkfs.erofs", "erofs-utils")):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
            pytest.skip(f"there is no {program}: install the Debian package {package}")
    folder = Path(tempfile.mkdtemp(prefix="benthic-firecracker-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        (folder / "guests").mkdir()
        (folder / "guests").chmod(0o1777)
        shutil.copy(FAKE, folder / "firecracker")
        (folder / "firecracker").chmod(0o755)
        yield folder / "firecracker"
    finally:
        shutil.rmtree(folder)


def kernel_in(folder: Path) -> Kernel:
    """What passes for a kernel: nobody runs it."""
    folder.mkdir(exist_ok=True)
    (folder / "vmlinux").write_bytes(b"\x7fELF")
    return Kernel("6.1.0", folder / "vmlinux", ())


def playing_driver(root: Path, program: Path) -> FirecrackerDriver:
    kernel = kernel_in(root / "kernel")
    return FirecrackerDriver(
        root, Store(root / "store"), program=str(program), obstacle=lambda: None, find_kernel=lambda: kernel
    )
