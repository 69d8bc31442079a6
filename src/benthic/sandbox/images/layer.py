"""One layer on disk: a folder with its record, its list, and its content as an EROFS file or as a plain tree.

    layers/<64 digits>/layer.json         the record below
                       entries.jsonl.gz   the list that the digest is of
                       data.erofs         or tree/, or, of a blob (a disk, a memory), data

Made in a folder of its own and renamed into place, so that it is there whole or not at all.
"""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from benthic.errors import shown
from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.entry import Listing, decode, digest_of, encode
from benthic.sandbox.images.writer import remove_tree

LayerKind = Literal["base", "workspace", "toolkit", "snapshot"]
LAYER_KINDS: tuple[LayerKind, ...] = ("base", "workspace", "toolkit", "snapshot")
LayerFormat = Literal["erofs", "folder", "blob"]
RECORD, ENTRIES, EROFS, TREE, BLOB = "layer.json", "entries.jsonl.gz", "data.erofs", "tree", "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What is known of a layer without opening it."""

    digest: str
    """`sha256:` and 64 digits: of the list of entries, or of a blob's bytes."""
    kind: LayerKind
    format: LayerFormat
    size_bytes: int
    """Of its content, unpacked."""
    num_entries: int
    created_s: float
    """Unix time."""
    source: str
    """Where it came from, in words."""

    def __post_init__(self) -> None:
        if self.kind not in LAYER_KINDS:
            raise ImageError(f"a layer's kind is {shown(self.kind)}; it is one of {', '.join(LAYER_KINDS)}")

    @property
    def hex(self) -> str:
        """The digits of the digest, which name its folder."""
        return self.digest.removeprefix("sha256:")


def read_record(folder: Path) -> Layer:
    """The record of a layer's folder.

    Raises:
        ImageError: it is no layer, or of another version of this program.
    """
    try:
        return Layer(**json.loads((folder / RECORD).read_text()))
    except FileNotFoundError:
        raise ImageError(
            f"there is no layer sha256:{folder.name} in {folder.parent}; take its image in again"
        ) from None
    except (ValueError, TypeError) as error:
        raise ImageError(f"the record of layer {folder.name} cannot be read: {error}; remove {folder}") from None


def write_record(folder: Path, layer: Layer) -> None:
    """Writes the record, after everything else, and makes it durable.

    A plain tree is left to the kernel to write: `Store.check` finds what a power failure has cut short.
    """
    (folder / RECORD).write_text(json.dumps(asdict(layer), indent=1))
    for path in (*folder.iterdir(), folder):
        if path.name != TREE:
            sync(path)


def read_entries(folder: Path) -> Listing:
    """A layer's list.

    Raises:
        ImageError: it is damaged.
    """
    try:
        data = gzip.decompress((folder / ENTRIES).read_bytes())
    except (OSError, EOFError, ValueError) as error:
        raise ImageError(f"the list of layer {folder.name} cannot be read: {error}; take its image in again") from None
    return decode(data)


def write_entries(folder: Path, entries: Listing) -> None:
    """Writes a layer's list."""
    (folder / ENTRIES).write_bytes(gzip.compress(encode(entries), 1, mtime=0))


def pack(folder: Path, *, is_compressed: bool) -> None:
    """Makes `data.erofs` of `tree/` and drops the tree.

    Raises:
        ImageError: mkfs.erofs failed.
    """
    command = [
        "mkfs.erofs",
        "--quiet",
        *(["-zlz4"] if is_compressed else []),
        "-U",
        "0" * 8 + "-0000-0000-0000-" + "0" * 12,
    ]
    done = subprocess.run(
        [*command, str(folder / EROFS), str(folder / TREE)], stdin=subprocess.DEVNULL, capture_output=True
    )
    if done.returncode:
        raise ImageError(f"mkfs.erofs failed: {done.stderr.decode('utf-8', 'replace').strip()[-500:]}")
    remove_tree(folder / TREE)


def differences(entries: Listing, tree: Path, digest: str) -> Iterator[str]:
    """What of a tree on disk is not as its list says, in words; the list itself is held against the digest."""
    if digest_of(entries) != digest:
        yield f"its list has the digest {digest_of(entries)} and not {digest}"
    for entry in entries:
        path = tree / entry.path
        if entry.type == "file":
            try:
                with open(path, "rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                yield f"{entry.path}: {error.strerror}"
            else:
                if found != entry.sha256:
                    yield f"{entry.path}: its content is not what was taken in"
        elif entry.type == "link" and (not path.is_symlink() or os.readlink(path) != entry.target):
            yield f"{entry.path}: is no link to {entry.target}"
        elif entry.type == "folder" and (path.is_symlink() or not path.is_dir()):
            yield f"{entry.path}: is no folder"


def can_pack() -> bool:
    """Whether this machine makes EROFS files."""
    return shutil.which("mkfs.erofs") is not None


def sync(path: Path) -> None:
    """Waits until a file or a folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
