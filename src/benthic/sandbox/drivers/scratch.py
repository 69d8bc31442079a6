"""Where a container's changes go: a file system of its own that is full at the sandbox's limits.

In memory while it is small against the sandbox's memory, of which it is a part; else an ext4 file system in a sparse
file, whose pages the kernel may write out and forget. Nothing else of the host can be filled from inside.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benthic.sandbox.linux import mounts
from benthic.sandbox.records import MIB, Limits

USER_ID = 1000
MEMORY_SHARE = 2
"""A scratch disk is kept in memory if the sandbox may use so many times its size of memory."""
_SPARE_FILES = 16
"""The file system's own, and the two folders that overlayfs needs."""
_OVERHEAD_SHARE = 32
"""Blocks that ext4 needs for itself: less than one in so many, beside the table of files."""
_INODE_BYTES = 256
_MKFS = (
    "mkfs.ext4",
    "-q",
    "-F",
    "-m0",
    f"-I{_INODE_BYTES}",
    "-O^has_journal,^resize_inode",  # it is thrown away after a crash, and never grows
    "-Elazy_itable_init=1,nodiscard",  # leaves the file sparse: 100 KB on disk
)


@dataclass(frozen=True, slots=True)
class Scratch:
    """The scratch disk of one home."""

    home: Path

    @property
    def at(self) -> Path:
        """Where it is mounted."""
        return self.home / "disk"

    @property
    def upper(self) -> Path:
        """The changes, as overlayfs writes them: files belong to 0..65535, a removed one is a device 0/0."""
        return self.at / "upper"

    @property
    def work(self) -> Path:
        """Overlayfs's own."""
        return self.at / "work"

    def create(self, limits: Limits, templates: Path) -> None:
        """Makes and mounts it.

        Args:
            templates: a folder that keeps empty file systems, one a size.

        Raises:
            OSError: this machine refuses.
        """
        self.at.mkdir()
        num_files = limits.num_files + _SPARE_FILES
        if limits.disk_bytes * MEMORY_SHARE <= limits.memory_bytes:
            mounts.mount_tmpfs(self.at, size_bytes=limits.disk_bytes, num_files=num_files, mode=0o700)
        else:
            template = _template(limits.disk_bytes, num_files, templates, draft=self.home / "template.ext4")
            _copy_sparse(template, self._image)
            mounts.mount_image(self._image, self.at, options="noinit_itable,nobarrier")
            self.at.chmod(0o700)
        self.upper.mkdir(mode=0o755)
        self.work.mkdir(mode=0o700)
        self.add_folder("work", 0o755, USER_ID)
        self.add_folder("tmp", 0o1777, 0)

    def add_folder(self, name: str, mode: int, uid: int) -> None:
        """A folder that the sandbox has whatever its layers hold; what they have under that name stays in it."""
        path = self.upper / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        os.chown(path, uid, uid)

    def add_file(self, name: str, text: str) -> None:
        """A file of root's that the sandbox has whatever its layers hold."""
        self.add_folder(str(Path(name).parent), 0o755, 0)
        (self.upper / name).write_text(text)

    def remove(self) -> None:
        """Unmounts it and drops what it holds; in any state, as often as called."""
        while mounts.unmount(self.at):
            pass
        self._image.unlink(missing_ok=True)
        if self.at.is_dir():
            self.at.rmdir()

    @property
    def _image(self) -> Path:
        return self.home / "disk.ext4"


def _template(disk_bytes: int, num_files: int, folder: Path, *, draft: Path) -> Path:
    """An empty file system with room for that much beside its own tables; `draft` is where it is made."""
    path = folder / f"{disk_bytes}-{num_files}.ext4"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        size = disk_bytes + num_files * _INODE_BYTES + disk_bytes // _OVERHEAD_SHARE + 2 * MIB
        _run([*_MKFS, f"-N{num_files}", str(draft), f"{-(-size // 1024)}k"])
        draft.replace(path)
    return path


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command[0]} failed: {done.stderr.strip()}")


def _copy_sparse(source: Path, target: Path) -> None:
    """Copies what is not a hole."""
    with source.open("rb") as read, target.open("xb") as write:
        size = os.fstat(read.fileno()).st_size
        os.truncate(write.fileno(), size)
        end = 0
        while (start := _next_data(read.fileno(), end)) is not None:
            end = os.lseek(read.fileno(), start, os.SEEK_HOLE)
            while start < end:
                start += os.copy_file_range(read.fileno(), write.fileno(), end - start, start, start)


def _next_data(file: int, offset: int) -> int | None:
    try:
        return os.lseek(file, offset, os.SEEK_DATA)
    except OSError:  # ENXIO: holes up to the end
        return None
