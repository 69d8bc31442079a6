"""Disks from layers, for virtual machines that boot elsewhere: ext4, made without mounting anything, raw or as qcow2.

Sandboxes here need none: their guests mount the layers' EROFS files themselves.
"""

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images.contents import open_stack, write_contents
from benthic.sandbox.images.entry import Entry, Listing
from benthic.sandbox.images.store import Store
from benthic.sandbox.images.writer import SET_ID, Policy, TreeWriter, remove_tree

BLOCK_BYTES = 4096
INODE_BYTES = 256
FILESYSTEM_ID = "62656e74-6869-4363-8000-000000000000"


def write_disk(
    store: Store, digests: Sequence[str], target: Path, *, size_bytes: int, format: Literal["raw", "qcow2"]
) -> None:
    """Writes layers, lowest first, as a disk with one ext4 file system and no partitions.

    Args:
        size_bytes: of the file system, rounded up to whole blocks; unwritten parts take no room.

    Raises:
        ImageError: the layers do not fit, or a program is missing; the message names its package.
    """
    if format == "raw":
        return write_ext4(store, digests, target, size_bytes=size_bytes)
    with tempfile.TemporaryDirectory(prefix=".disk-", dir=target.parent) as scratch:
        raw = Path(scratch, "raw")
        write_ext4(store, digests, raw, size_bytes=size_bytes)
        _run(["qemu-img", "convert", "-f", "raw", "-O", "qcow2", str(raw), str(target)], package="qemu-utils")


def write_ext4(store: Store, digests: Sequence[str], target: Path, *, size_bytes: int) -> None:
    """Writes layers, lowest first, as an ext4 file system in a sparse file, owners as in the lists."""
    with tempfile.TemporaryDirectory(prefix=".ext4-", dir=target.parent) as scratch:
        tree = Path(scratch, "tree")
        tree.mkdir()
        with open_stack(store, digests) as contents:
            writer = TreeWriter(tree, Policy(strip_set_id=False))
            write_contents(writer, contents)
        entries = writer.finish()
        num_inodes = 2 * len(entries) + size_bytes // (16 << 10)
        with open(target, "wb") as file:
            file.truncate(-(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES)
        _run(
            ["mkfs.ext4", "-q", "-F", "-b", str(BLOCK_BYTES), "-I", str(INODE_BYTES), "-N", str(num_inodes)]
            + ["-m", "0", "-U", FILESYSTEM_ID, "-E", f"root_owner=0:0,hash_seed={FILESYSTEM_ID}", "-d", str(tree)]
            + [str(target)],
            package="e2fsprogs",
        )
        remove_tree(tree)
        _mend_inodes(target, entries, Path(scratch))


def _mend_inodes(disk: Path, entries: Listing, scratch: Path) -> None:
    """Sets in the file system what the tree on the host could not have: setuid bits; of an ordinary user, owners."""
    lines: list[str] = []
    for entry in entries:
        lines += _corrections(entry, is_root=os.geteuid() == 0)
    if lines:
        script = scratch / "inodes"
        script.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
        _run(["debugfs", "-w", "-f", str(script), str(disk)], package="e2fsprogs")


def _corrections(entry: Entry, *, is_root: bool) -> list[str]:
    if any(character in entry.path for character in '"\n\\'):
        if is_root and not entry.mode & SET_ID:
            return []
        raise ImageError(
            f"{entry.path!r} cannot be put on a disk by an ordinary user: its name has a quote or a newline"
        )
    path, bits = f'"/{entry.path}"', {"file": 0o100000, "folder": 0o040000, "link": 0o120000, "fifo": 0o010000}
    lines = []
    if not is_root or (entry.type == "file" and entry.mode & SET_ID):
        lines.append(f"set_inode_field {path} mode 0{bits[entry.type] | entry.mode:o}")
    if not is_root:
        lines += [f"set_inode_field {path} uid {entry.uid}", f"set_inode_field {path} gid {entry.gid}"]
    return lines


def _run(command: list[str], *, package: str) -> None:
    """Runs a program of the system.

    Raises:
        ImageError: it is not installed, or failed; debugfs says so on stderr only.
    """
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={"PATH": path, "LC_ALL": "C", "DEBUGFS_PAGER": "cat"},
        )
    except FileNotFoundError:
        raise ImageError(f"{command[0]} is not installed; install the Debian package {package}") from None
    said = [line for line in done.stderr.decode("utf-8", "replace").splitlines() if not line.startswith("debugfs 1.")]
    if done.returncode or (command[0] == "debugfs" and said):
        raise ImageError(f"{command[0]} failed: {' '.join(said)[-500:]}")
