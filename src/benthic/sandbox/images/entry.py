"""What a layer holds, as a list: one sorted entry a path, with everything but the content, which it names by hash.

The list is the layer's identity: its digest is the SHA-256 of the lines. So a layer has one digest whether it lies in
an EROFS file or in a folder, whoever unpacked it, and a reader that may not set owners (an ordinary user's machine)
still knows them. Whiteouts are entries of their own kind; no name is special.

    {"group":null,"mode":493,"modified_ns":0,"path":"bin/busybox","sha256":"9c..","size":1982256,"type":"file",...}
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Literal

from benthic.errors import shown
from benthic.sandbox.errors import ImageError

EntryType = Literal["file", "folder", "link", "fifo", "whiteout"]
TYPES: tuple[EntryType, ...] = ("file", "folder", "link", "fifo", "whiteout")
PATH_LEN = 4095
NAME_LEN = 255
MAX_ID = 65535
"""Owners are those of one sandbox's own range."""
PERMISSIONS = 0o7777


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One path of a layer. The root itself is no entry: every sandbox's root folder is alike."""

    path: str
    """Relative, POSIX, normal: no empty part, no `.` and no `..`."""
    type: EntryType
    mode: int = 0o755
    """Permission bits with setuid, setgid and sticky."""
    uid: int = 0
    gid: int = 0
    modified_ns: int = 0
    """Unix time in nanoseconds."""
    size: int = 0
    """Bytes, of files."""
    sha256: str = ""
    """Of the content, of files, in hex; empty until the file has been read."""
    target: str = ""
    """Where a link points; never followed here."""
    group: str | None = None
    """Files of one group are hard links to one file; it is named by the first path of them."""
    is_opaque: bool = False
    """A folder that hides what lower layers have under its path."""

    def __post_init__(self) -> None:
        check_path(self.path)
        if self.type not in TYPES:
            raise ImageError(f"{self.path!r} has type {shown(self.type)}; an entry is one of {', '.join(TYPES)}")
        if not (0 <= self.uid <= MAX_ID and 0 <= self.gid <= MAX_ID):
            raise ImageError(f"{self.path!r} belongs to {self.uid}:{self.gid}; owners must be in 0..{MAX_ID}")
        if self.mode & ~PERMISSIONS or self.size < 0:
            raise ImageError(f"{self.path!r} has mode {self.mode:o} and size {self.size}; neither is possible")
        if len(self.sha256) not in ((0, 64) if self.type == "file" else (0,)):
            raise ImageError(f"{self.path!r}, a {self.type}, has the hash {shown(self.sha256)}; files have 64 digits")
        if self.type == "link" and not 0 < len(self.target.encode("utf-8", "surrogateescape")) <= PATH_LEN:
            raise ImageError(f"the link {self.path!r} points to {shown(self.target)}; it needs 1 to {PATH_LEN} bytes")

    @property
    def parent(self) -> str:
        """The folder that it lies in; empty for the root."""
        return self.path.rpartition("/")[0]


Listing = tuple[Entry, ...]
"""Sorted by path, each path once, every folder before what lies in it."""


def check_path(path: str) -> None:
    """Whether a path may be one of a layer's.

    Raises:
        ImageError: it is absolute, empty, climbs, is not normal, or has a byte or a length that no file can have.
    """
    raw = path.encode("utf-8", "surrogateescape")
    if path.startswith("/"):
        raise ImageError(f"the path {shown(path)} is absolute; a layer's paths are relative to its root")
    if ".." in path.split("/"):
        raise ImageError(f"the path {shown(path)} climbs by `..`; a layer's paths stay inside it")
    if not path or str(PurePosixPath(path)) != path or path == "." or b"\0" in raw:
        raise ImageError(f"the path {shown(path)} is not normal; write it as `bin/sh`")
    if len(raw) > PATH_LEN or any(len(part) > NAME_LEN for part in raw.split(b"/")):
        raise ImageError(f"the path {shown(path)} is too long; names have {NAME_LEN} bytes, paths {PATH_LEN} at most")


def listing(entries: Iterable[Entry]) -> Listing:
    """Sorts entries and names groups of hard links by their first path.

    Raises:
        ImageError: a path comes twice, lies under something that is no folder of the list, or a group differs in
            anything but its path.
    """
    ordered = sorted(entries, key=lambda entry: entry.path.split("/"))
    found: dict[str, Entry] = {}
    groups: dict[str, list[Entry]] = {}
    for entry in ordered:
        if entry.path in found:
            raise ImageError(f"the path {entry.path!r} comes twice; a layer has each path once")
        if entry.parent and (entry.parent not in found or found[entry.parent].type != "folder"):
            raise ImageError(f"{entry.path!r} lies in {entry.parent!r}, which is no folder of this layer")
        assert entry.type != "file" or entry.sha256, f"{entry.path} has not been read"
        found[entry.path] = entry
        if entry.group is not None:
            groups.setdefault(entry.group, []).append(entry)
    for members in groups.values():
        name = members[0].path if len(members) > 1 else None
        found.update((entry.path, _renamed(entry, name, members[0])) for entry in members)
    return tuple(found.values())


def encode(entries: Listing) -> bytes:
    """The list as lines of JSON with sorted keys: what the digest is of. Names that are no UTF-8 keep their bytes."""
    lines = (json.dumps(_fields(entry), sort_keys=True, separators=(",", ":")) for entry in entries)
    return "".join(f"{line}\n" for line in lines).encode()


def decode(data: bytes) -> Listing:
    """Reads what `encode` wrote.

    Raises:
        ImageError: it is not such a list.
    """
    try:
        entries = [Entry(**json.loads(line)) for line in data.splitlines()]
    except (ValueError, TypeError, AttributeError) as error:
        raise ImageError(f"a layer's list cannot be read: {error}; take the layer in again") from None
    if any(entry.type == "file" and not entry.sha256 for entry in entries) or listing(entries) != tuple(entries):
        raise ImageError("a layer's list is not in order; take the layer in again")
    return tuple(entries)


def digest_of(entries: Listing) -> str:
    """The layer's name: `sha256:` and 64 digits."""
    return f"sha256:{hashlib.sha256(encode(entries)).hexdigest()}"


def size_of(entries: Iterable[Entry]) -> int:
    """Bytes of content, hard links counted once."""
    return sum(entry.size for entry in entries if entry.group in (None, entry.path))


def by_path(entries: Iterable[Entry]) -> Mapping[str, Entry]:
    """Entries by their paths."""
    return {entry.path: entry for entry in entries}


def _renamed(entry: Entry, name: str | None, first: Entry) -> Entry:
    if replace(entry, path=first.path, group=None) != replace(first, group=None):
        raise ImageError(f"{entry.path!r} and {first.path!r} are one file by hard link, and differ in more than name")
    return entry if entry.group == name else replace(entry, group=name)


def _fields(entry: Entry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in Entry.__slots__}
