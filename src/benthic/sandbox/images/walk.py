"""Reads a folder of the host into a layer: an agent's overlay, or files that somebody wants in an image.

The folder is not trusted, and may change while it is read: each name is opened below its open parent, no link is
followed, and nothing that could block or have an effect by being opened is opened.
"""

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path

from benthic.sandbox.images.entry import MAX_ID, Entry
from benthic.sandbox.images.writer import OPAQUE, TreeWriter

NOBODY = 65534
READ_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """How a folder is read. Sockets, devices and extended attributes are left out; devices 0/0 are whiteouts."""

    at: str = ""
    """Where in the layer it goes; empty is the root."""
    id_base: int = 0
    """The host's id that is root inside. The host's own root counts as root inside, other ids as nobody."""
    owner: int | None = None
    """Everything belongs to this user and group instead."""
    opaque: str = OPAQUE
    """The attribute of folders that hide what is below."""
    left_out: tuple[str, ...] = ()
    """Names in the folder itself whose content is not read."""

    def copy(self, folder: Path, writer: TreeWriter) -> None:
        """Writes all that the folder holds.

        Raises:
            ImageError: a file shrinks while it is read, or the writer's policy refuses something.
        """
        if self.at:
            writer.folder(replace(self._entry(self.at, folder.stat()), type="folder"))
        first: dict[tuple[int, int], str] = {}
        for parent, folders, files, handle in os.fwalk(folder, follow_symlinks=False):
            prefix = os.path.relpath(parent, folder)
            if prefix == ".":
                folders[:] = [name for name in folders if name not in self.left_out]
            for name in sorted((*folders, *files)):
                path = "/".join(part for part in (self.at, prefix if prefix != "." else "", name) if part)
                found = os.stat(name, dir_fd=handle, follow_symlinks=False)
                inode = (found.st_dev, found.st_ino)
                if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and inode in first:
                    writer.hard_link(path, first[inode])
                else:
                    first.setdefault(inode, path)
                    self._copy_one(writer, self._entry(path, found), name, handle, found)

    def _copy_one(self, writer: TreeWriter, entry: Entry, name: str, handle: int, found: os.stat_result) -> None:
        if stat.S_ISDIR(found.st_mode):
            writer.folder(replace(entry, type="folder", is_opaque=self._is_opaque(name, handle)))
        elif stat.S_ISREG(found.st_mode):
            with open(os.open(name, READ_FILE, dir_fd=handle), "rb") as data:
                writer.file(replace(entry, type="file", size=os.fstat(data.fileno()).st_size), data)
        elif stat.S_ISLNK(found.st_mode):
            writer.other(replace(entry, type="link", target=os.readlink(name, dir_fd=handle)))
        elif stat.S_ISFIFO(found.st_mode):
            writer.other(entry)
        elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
            writer.other(Entry(path=entry.path, type="whiteout", mode=0))

    def _entry(self, path: str, found: os.stat_result) -> Entry:
        return Entry(
            path=path,
            type="fifo",
            mode=stat.S_IMODE(found.st_mode),
            uid=self._inside(found.st_uid),
            gid=self._inside(found.st_gid),
            modified_ns=found.st_mtime_ns,
        )

    def _is_opaque(self, name: str, handle: int) -> bool:
        folder = os.open(name, READ_FOLDER, dir_fd=handle)
        try:
            return os.getxattr(folder, self.opaque) == b"y"
        except OSError:  # it has no such mark
            return False
        finally:
            os.close(folder)

    def _inside(self, owner: int) -> int:
        if self.owner is not None:
            return self.owner
        if self.id_base <= owner <= self.id_base + MAX_ID:
            return owner - self.id_base
        return 0 if owner == 0 else NOBODY
