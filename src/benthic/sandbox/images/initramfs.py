"""Boot archives of small virtual machines: layers and a few more files as one cpio archive of the `newc` form.

Written from the lists, so owners and bits are right whoever writes it. Not compressed: unpacking costs an emulated
processor more than reading.
"""

import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.contents import Content, open_stack
from benthic.sandbox.images.entry import Entry, EntryType
from benthic.sandbox.images.store import Store

MAX_FILE_BYTES = (1 << 32) - 1
_TYPE_BITS: dict[EntryType, int] = {
    "file": stat.S_IFREG,
    "folder": stat.S_IFDIR,
    "link": stat.S_IFLNK,
    "fifo": stat.S_IFIFO,
}


@dataclass(frozen=True, slots=True)
class BootFile:
    """One more file of the archive, such as `/init` or a kernel module."""

    source: Path
    mode: int = 0o755


def write_initramfs(store: Store, digests: Sequence[str], target: Path, extra: Mapping[str, BootFile]) -> None:
    """Writes layers, lowest first, as a boot archive.

    Args:
        extra: files by their relative paths in the archive, above the layers; their folders are made.

    Raises:
        ImageError: a file has 4 GiB or more, which the form cannot hold.
    """
    with open_stack(store, digests) as contents, open(target, "wb") as out:
        writer = _CpioWriter(out)
        known = {content.entry.path for content in contents}
        for content in contents:
            if content.entry.path not in extra:
                writer.add(content)
        for path, file in sorted(extra.items()):
            for folder in _missing_folders(path, known):
                writer.add(Content(Entry(path=folder, type="folder"), file.source))
            size = file.source.stat().st_size
            writer.add(Content(Entry(path=path, type="file", mode=file.mode, size=size), file.source))
        writer.end()


def _missing_folders(path: str, known: set[str]) -> list[str]:
    parts = path.split("/")
    missing = [folder for folder in ("/".join(parts[:n]) for n in range(1, len(parts))) if folder not in known]
    known.update(missing)
    return missing


class _CpioWriter:
    """Writes entries as cpio members; hard links share a number, and the first of them has the bytes."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._next, self._groups = out, 1, dict[str, int]()

    def add(self, content: Content) -> None:
        entry = content.entry
        if entry.size > MAX_FILE_BYTES:
            raise ImageError(f"{entry.path!r} has {entry.size} bytes; a boot archive holds files below 4 GiB")
        number = self._groups.get(entry.group) if entry.group is not None else None
        is_again = number is not None
        if number is None:
            number, self._next = self._next, self._next + 1
        if entry.group is not None:
            self._groups[entry.group] = number
        target = entry.target.encode("utf-8", "surrogateescape") if entry.type == "link" else b""
        size = len(target) if target else 0 if is_again else entry.size
        self._head(entry, number, size)
        if target:
            self._out.write(target)
        elif size:
            with open(content.path, "rb") as data:
                shutil.copyfileobj(data, self._out, 1 << 20)
        self._pad()

    def end(self) -> None:
        self._fields([0, 0, 0, 0, 1, 0, 0], "TRAILER!!!")

    def _head(self, entry: Entry, number: int, size: int) -> None:
        links = 2 if entry.group is not None or entry.type == "folder" else 1
        mode = _TYPE_BITS[entry.type] | entry.mode
        modified_s = max(0, min(entry.modified_ns // 1_000_000_000, MAX_FILE_BYTES))
        self._fields([number, mode, entry.uid, entry.gid, links, modified_s, size], entry.path)

    def _fields(self, fields: list[int], path: str) -> None:
        name = path.encode("utf-8", "surrogateescape") + b"\0"
        values = [*fields, 0, 0, 0, 0, len(name), 0]
        self._out.write(b"070701" + b"".join(b"%08X" % value for value in values) + name)
        self._pad()

    def _pad(self) -> None:
        self._out.write(b"\0" * (-self._out.tell() % 4))
