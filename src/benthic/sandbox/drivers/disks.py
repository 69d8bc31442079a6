"""The disks of virtual machines: the image's layers as they lie in the store, and one that the sandbox writes.

Layers are EROFS files, which the guest mounts itself: nothing is converted, nothing is copied, and all machines on a
layer share its pages in the host's cache. What is written goes to an ext4 file system made to the sandbox's limits.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

from benthic.sandbox.errors import StartFailed
from benthic.sandbox.images import Store
from benthic.sandbox.images.derived import derived
from benthic.sandbox.records import Limits

SPARE_BYTES = 2 << 20
"""About what the file system needs for itself."""
BLOCK_BYTES = 4096
GROUP_BYTES = 128 << 20
INODE_BYTES = 256
NUM_FITTINGS = 4


def layer_disk(store: Store, digest: str) -> Path:
    """The EROFS file of a layer; of one that is kept as a plain tree it is made once. Hold the layer meanwhile.

    Raises:
        ImageError: the layer is not here.
        StartFailed: it cannot be made.
    """
    layer = store.layer(digest)
    packed = store.root / "layers" / layer.hex / "data.erofs"
    if packed.exists():
        return packed
    tree = store.root / "layers" / layer.hex / "tree"
    return derived(
        store,
        "erofs disk 1",
        [digest],
        lambda path: _run("mkfs.erofs", "--quiet", str(path), str(tree), package="erofs-utils"),
    )


def make_upper(path: Path, limits: Limits) -> None:
    """An empty ext4 file system in a sparse file, that holds what a sandbox may write and no more.

    It has no journal: a machine that ends is never started again from its disk alone.
    """
    size = limits.disk_bytes + limits.num_files * INODE_BYTES + SPARE_BYTES
    num_groups = -(-size // GROUP_BYTES)
    # Each group's table of files is rounded up to whole blocks.
    num_inodes = max(64, limits.num_files - (num_groups + 2) * (BLOCK_BYTES // INODE_BYTES))
    for _ in range(NUM_FITTINGS):
        _make_ext4(path, size, num_inodes)
        excess = _free_bytes(path) - limits.disk_bytes
        if -2 * BLOCK_BYTES <= excess <= 0:
            return
        size -= excess
    assert excess <= 0, f"{path} offers {excess} bytes too many"


def _make_ext4(path: Path, size: int, num_inodes: int) -> None:
    with path.open("wb") as file:
        file.truncate(size // BLOCK_BYTES * BLOCK_BYTES)
    options = ["-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard"]
    options += ["-b", str(BLOCK_BYTES), "-I", str(INODE_BYTES), "-N", str(num_inodes)]
    _run("mkfs.ext4", *options, str(path), package="e2fsprogs")


def _free_bytes(path: Path) -> int:
    with path.open("rb") as file:
        superblock = file.read(2048)[1024:]
    return int.from_bytes(superblock[12:16], "little") * BLOCK_BYTES  # s_free_blocks_count_lo


def empty_overlay(base: Path, path: Path) -> None:
    """A qcow2 file that holds nothing yet of what differs from another one, which whoever opens it must name."""
    size = _virtual_size(base)
    _run("qemu-img", "create", "-q", "-f", "qcow2", str(path), str(size), package="qemu-utils")


def to_qcow2(source: Path, target: Path, *, base: Path | None = None) -> None:
    """A qcow2 file that stands alone, of a raw one, or of an overlay and its base."""
    if base is None:
        arguments = ["-f", "raw", str(source)]
    else:
        # A running QEMU has them open; the machine stands still.
        files = [{"driver": "file", "filename": str(path), "locking": "off"} for path in (source, base)]
        chain = {"driver": "qcow2", "file": files[0], "backing": {"driver": "qcow2", "file": files[1]}}
        arguments = [f"json:{json.dumps(chain)}"]
    _run("qemu-img", "convert", "-q", "-O", "qcow2", *arguments, str(target), package="qemu-utils")


def copy_sparse(source: Path, target: Path) -> None:
    """Copies a file's data and leaves its holes holes."""
    with source.open("rb") as reading, target.open("wb") as writing:
        size = os.fstat(reading.fileno()).st_size
        writing.truncate(size)
        start = 0
        while (start := _next_data(reading.fileno(), start)) < size:
            end = os.lseek(reading.fileno(), start, os.SEEK_HOLE)
            _copy_range(reading.fileno(), writing.fileno(), start, end)
            start = end


def _next_data(descriptor: int, start: int) -> int:
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA)
    except OSError:  # ENXIO: only a hole is left
        return os.fstat(descriptor).st_size


def _copy_range(source: int, target: int, start: int, end: int) -> None:
    while start < end:
        copied = os.copy_file_range(source, target, end - start, start, start)
        if copied == 0:
            return
        start += copied


def _virtual_size(path: Path) -> int:
    with path.open("rb") as file:
        head = file.read(32)
    assert head.startswith(b"QFI\xfb"), f"{path} is no qcow2 file"
    return int.from_bytes(head[24:32], "big")


def _run(program: str, *arguments: str, package: str) -> None:
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise StartFailed(f"there is no {program} on this machine; install the Debian package {package}", stage="disks")
    done = subprocess.run([found, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StartFailed(f"{program} failed: {done.stderr.strip()[-500:]}", stage="disks")
