"""Writes a layer's tree to disk, entry by entry, from sources that are not trusted: archives, an agent's files.

Every path is checked, and its parent is a folder that this writer made itself: no link in the source is ever followed,
so nothing can be written outside. Setuid, setgid and file capabilities never reach the disk of the host; the list
keeps the bits, for virtual machines, unless the source was asked to be stripped of them.
"""

import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.entry import Entry, Listing, check_path, listing

CHUNK_BYTES = 1 << 20
OPAQUE = "trusted.overlay.opaque"
SET_ID = stat.S_ISUID | stat.S_ISGID


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a layer may hold."""

    max_bytes: int = 64 << 30
    max_entries: int = 4_000_000
    strip_set_id: bool = True
    """Whether setuid and setgid bits of files are dropped."""
    modified_s: int | None = None
    """Given to every entry, so that equal content has an equal digest wherever it was made; None keeps each one's."""


DEFAULT = Policy()


class TreeWriter:
    """One layer in the making. A path that comes again replaces what was there, as in an archive."""

    def __init__(self, folder: Path, policy: Policy = DEFAULT, lower: Mapping[str, Entry] | None = None) -> None:
        """`folder` is new and empty. `lower` is what lies below: folders that come without an entry look like there."""
        self._folder, self._policy, self._lower = folder, policy, lower or {}
        self._entries: dict[str, Entry] = {}
        self._children: dict[str, set[str]] = {}
        self._groups = itertools.count()
        self._num_bytes = 0
        self._is_root = os.geteuid() == 0

    def folder(self, entry: Entry) -> None:
        """A folder; one that is there keeps what lies in it."""
        known = self._entries.get(entry.path)
        if known is not None and known.type == "folder":
            entry = replace(entry, is_opaque=entry.is_opaque or known.is_opaque)
        else:
            hides = known is not None and known.type == "whiteout"
            self._make_room(entry.path)
            self._on_disk(entry.path).mkdir(mode=0o700)
            entry = replace(entry, is_opaque=entry.is_opaque or hides)
        self._record(entry)

    def file(self, entry: Entry, data: BinaryIO) -> None:
        """A file with `entry.size` bytes of `data`; the entry's hash is ignored and taken from what was read."""
        self._make_room(entry.path)
        self._num_bytes += entry.size
        if self._num_bytes > self._policy.max_bytes:
            raise ImageError(
                f"the layer has more than {self._policy.max_bytes} bytes at {entry.path!r}; raise the limit"
            )
        sha256 = hashlib.sha256()
        left = entry.size
        with open(self._on_disk(entry.path), "xb") as out:
            while left:
                piece = data.read(min(left, CHUNK_BYTES))
                if not piece:
                    raise ImageError(f"{entry.path!r} ends {left} bytes early; the source is cut or changing")
                sha256.update(piece)
                if piece.count(0) == len(piece):
                    out.seek(len(piece), os.SEEK_CUR)
                else:
                    out.write(piece)
                left -= len(piece)
            out.truncate(entry.size)
        self._record(replace(entry, sha256=sha256.hexdigest(), group=None))

    def hard_link(self, path: str, target: str) -> None:
        """Another name for a file that this layer already has; of a symbolic link, another such link."""
        check_path(path)
        first = self._entries.get(target)
        if first is not None and first.type == "link":
            return self.other(replace(first, path=path))
        if first is None or first.type != "file":
            raise ImageError(f"{path!r} is a hard link to {target!r}, which is no file of this layer before it")
        if path == target:
            return
        self._make_room(path)
        os.link(self._on_disk(target), self._on_disk(path), follow_symlinks=False)
        first = replace(first, group=first.group or f"#{next(self._groups)}")
        self._entries[target] = first
        self._record(replace(first, path=path))

    def other(self, entry: Entry) -> None:
        """A symbolic link, a FIFO, or a whiteout, which is a file on disk only where this user may make one."""
        self._make_room(entry.path)
        path = self._on_disk(entry.path)
        if entry.type == "link":
            os.symlink(entry.target, path)
        elif entry.type == "fifo":
            os.mkfifo(path, 0o600)
        elif self._is_root:
            os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
        self._record(entry)

    def mark_opaque(self, path: str) -> None:
        """A folder that hides what lies below; made if it has not come yet."""
        if not path:
            raise ImageError("the root folder is marked opaque; drop the layers below instead")
        self._make_parents(f"{path}/.")
        self._entries[path] = replace(self._entries[path], is_opaque=True)

    def hide(self, path: str) -> None:
        """Removes what lower layers have under a path; this layer's own entry there, before or after, stays."""
        known = self._entries.get(path)
        if known is None:
            self.other(Entry(path=path, type="whiteout", mode=0))
        elif known.type == "folder":
            self.mark_opaque(path)

    def finish(self) -> Listing:
        """Gives every path its owner, bits and time, deepest first, and returns the list."""
        entries = listing(self._entries.values())
        for entry in reversed(entries):
            self._dress(entry)
        os.utime(self._folder, ns=(0, 0))
        self._folder.chmod(0o755)
        return entries

    def _record(self, entry: Entry) -> None:
        if len(self._entries) >= self._policy.max_entries:
            raise ImageError(f"the layer has more than {self._policy.max_entries} entries; raise the limit")
        if self._policy.strip_set_id and entry.type == "file":
            entry = replace(entry, mode=entry.mode & ~SET_ID)
        if self._policy.modified_s is not None:
            entry = replace(entry, modified_ns=self._policy.modified_s * 1_000_000_000)
        self._entries[entry.path] = entry
        self._children.setdefault(entry.parent, set()).add(entry.path)

    def _make_room(self, path: str) -> None:
        """Leaves the path free, in a folder of this layer."""
        check_path(path)
        self._make_parents(path)
        if path in self._entries:
            self._remove(path)

    def _make_parents(self, path: str) -> None:
        parent = ""
        for part in path.split("/")[:-1]:
            parent = f"{parent}/{part}".lstrip("/")
            known = self._entries.get(parent)
            if known is None:
                below = self._lower.get(parent)
                is_folder = below is not None and below.type == "folder"
                self.folder(
                    replace(below, is_opaque=False) if below and is_folder else Entry(path=parent, type="folder")
                )
            elif known.type == "whiteout":
                self.folder(Entry(path=parent, type="folder"))
            elif known.type != "folder":
                raise ImageError(f"{path!r} lies under {parent!r}, which is a {known.type}; links are not followed")

    def _remove(self, path: str) -> None:
        entry = self._entries.pop(path)
        self._children[entry.parent].discard(path)
        if entry.type == "folder":
            for child in list(self._children.get(path, ())):
                self._remove(child)
            self._on_disk(path).rmdir()
        else:
            self._on_disk(path).unlink(missing_ok=True)

    def _dress(self, entry: Entry) -> None:
        path = self._on_disk(entry.path)
        if entry.type == "whiteout":
            return
        if self._is_root:
            os.lchown(path, entry.uid, entry.gid)
            if entry.is_opaque:
                os.setxattr(path, OPAQUE, b"y", follow_symlinks=False)
        if entry.type != "link":
            # An ordinary user must be able to read and remove what is his on disk, whatever bits it has in the list.
            own = 0 if self._is_root else (0o700 if entry.type == "folder" else 0o400)
            path.chmod(entry.mode & ~SET_ID | own if entry.type == "file" else entry.mode | own)
        os.utime(path, ns=(entry.modified_ns, entry.modified_ns), follow_symlinks=False)

    def _on_disk(self, path: str) -> Path:
        return self._folder / path


def remove_tree(folder: Path) -> None:
    """Removes a tree whose folders may forbid it, as an ordinary user's may."""
    if not os.path.lexists(folder):
        return
    for parent, names, _ in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink() and path.stat().st_mode & 0o700 != 0o700:
                path.chmod(0o700)
    shutil.rmtree(folder)
