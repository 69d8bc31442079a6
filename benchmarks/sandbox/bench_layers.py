"""Layers: starting from a shared EROFS file against unpacking a tar for each sandbox, and what the page cache holds.

    python benchmarks/sandbox/bench_layers.py [--image python:host] [--sandboxes 20] [--repeats 5] [--out FILE]

Needs root and erofs-utils. For each way, N roots are made of one image, and a program that reads much of it is run in
each: `start` is the time until the root can be used, `cached` what the page cache then holds of the image's files
(counted page by page through mincore, so that other programs do not disturb it), `disk` what the roots take on disk.
`read` is the share of the image that one run of the program brought in.
"""

import argparse
import ctypes
import json
import mmap
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benthic.bench.hardware import hardware_line
from benthic.sandbox.images import Store, chosen_layers
from benthic.sandbox.images.contents import open_stack
from benthic.sandbox.images.tar import write_tar

MIB = 1 << 20
PROGRAM = "import asyncio, email, http.client, json, sqlite3, ssl, unittest, xml.dom"


@dataclass(frozen=True, slots=True)
class Row:
    """One way of making roots."""

    way: str
    sandboxes: int
    first_start_ms: float
    start_ms_p50: float
    start_ms_max: float
    cached_mib: float
    disk_mib: float


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--image", default="python:host")
    arguments.add_argument("--sandboxes", type=int, default=20)
    arguments.add_argument("--command", default=f"/usr/bin/python3 -I -c '{PROGRAM}'", help="reads much of the image")
    arguments.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="on a real disk, not a tmpfs")
    arguments.add_argument("--out", type=Path, help="appends one JSON line a way")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-layers-") as scratch:
        store = Store(Path(scratch, "store"), format="erofs")
        started = time.perf_counter()
        layers = chosen_layers(store, options.image)
        took_s = time.perf_counter() - started
        size = sum(store.layer(digest).size_bytes for digest in layers)
        print(hardware_line(libraries=()))
        print(f"# {options.image}: {len(layers)} layers, {size / MIB:.1f} MiB unpacked, taken in within {took_s:.1f} s")
        rows = [
            from_layers(store, layers, Path(scratch), options.sandboxes, options.command),
            from_tar(store, layers, Path(scratch), options.sandboxes, options.command),
        ]
        print(f"{'way':<14}{'roots':>6}{'first ms':>10}{'p50 ms':>9}{'max ms':>9}{'cached MiB':>12}{'disk MiB':>10}")
        for row in rows:
            print(
                f"{row.way:<14}{row.sandboxes:>6}{row.first_start_ms:>10.1f}{row.start_ms_p50:>9.1f}"
                f"{row.start_ms_max:>9.1f}{row.cached_mib:>12.1f}{row.disk_mib:>10.1f}"
            )
        if options.out is not None:
            with options.out.open("a") as out:
                out.writelines(
                    json.dumps({"bench": "layers", "image": options.image} | asdict(row)) + "\n" for row in rows
                )


def from_layers(store: Store, layers: tuple[str, ...], scratch: Path, count: int, command: str) -> Row:
    """Every root is an overlay on the mounted layers."""
    times, roots = [], []
    try:
        for number in range(count):
            home = scratch / f"overlay-{number}"
            started = time.perf_counter()
            trees = store.mount(f"bench-{number}", layers)
            for name in ("upper", "work", "root"):
                (home / name).mkdir(parents=True)
            lower = ":".join(str(tree) for tree in reversed(trees))
            mount("overlay", home / "root", f"lowerdir={lower},upperdir={home / 'upper'},workdir={home / 'work'}")
            times.append(time.perf_counter() - started)
            roots.append(home / "root")
        files = [path for digest in layers for path in (store.root / "layers" / digest[7:]).glob("data.erofs")]
        forget(files)
        run(roots[0], command)
        one = cached(walk(trees)) + cached(files)
        print(f"# one run of the program brought in {one / MIB:.1f} MiB")
        for root in roots[1:]:
            run(root, command)
        # Every overlay shows the same pages: those of the layers are counted once, and the files below them.
        held = cached(walk(trees)) + cached(files)
        return row("EROFS layers", times, held, sum(path.stat().st_blocks * 512 for path in files))
    finally:
        for root in roots:
            subprocess.run(["umount", str(root)], check=True)
        for number in range(count):
            store.release(f"bench-{number}")


def from_tar(store: Store, layers: tuple[str, ...], scratch: Path, count: int, command: str) -> Row:
    """Every root is the image unpacked once more, as without layers."""
    archive = scratch / "image.tar"
    with open_stack(store, layers) as contents, archive.open("wb") as out:
        write_tar(contents, out)
    times, roots = [], []
    for number in range(count):
        root = scratch / f"unpacked-{number}"
        root.mkdir()
        started = time.perf_counter()
        subprocess.run(["tar", "-xf", str(archive), "-C", str(root)], check=True)
        times.append(time.perf_counter() - started)
        roots.append(root)
    os.sync()
    forget(walk(roots))
    for root in roots:
        run(root, command)
    disk = sum(path.stat().st_blocks * 512 for path in walk(roots))
    return row("unpacked tar", times, cached(walk(roots)), disk)


def row(way: str, times: list[float], cached_bytes: int, disk_bytes: int) -> Row:
    later = times[1:] or times
    return Row(
        way=way,
        sandboxes=len(times),
        first_start_ms=times[0] * 1e3,
        start_ms_p50=statistics.median(later) * 1e3,
        start_ms_max=max(later) * 1e3,
        cached_mib=cached_bytes / MIB,
        disk_mib=disk_bytes / MIB,
    )


def mount(kind: str, target: Path, options: str) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.mount(kind.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(2 | 4), options.encode()):
        raise OSError(ctypes.get_errno(), "an overlay cannot be mounted", str(target))


def run(root: Path, command: str) -> None:
    subprocess.run(["chroot", str(root), "/bin/sh", "-c", command], check=True, stdin=subprocess.DEVNULL)


def walk(roots: Iterable[Path]) -> Iterator[Path]:
    """Regular files below folders."""
    for root in roots:
        for parent, _, names in os.walk(root):
            paths = (Path(parent, name) for name in names)
            yield from (path for path in paths if path.is_file() and not path.is_symlink())


def forget(paths: Iterable[Path]) -> None:
    """Drops files from the page cache; they must be on disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached(paths: Iterable[Path]) -> int:
    """Bytes of files that the page cache holds."""
    page = resource.getpagesize()
    return sum(resident_pages(path, page) for path in paths) * page


def resident_pages(path: Path, page: int) -> int:
    size = path.stat().st_size
    if size == 0:
        return 0
    library = ctypes.CDLL(None, use_errno=True)
    vector = (ctypes.c_ubyte * -(-size // page))()
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as view,
    ):
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        if library.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), vector):
            raise OSError(ctypes.get_errno(), "mincore failed", str(path))
    return sum(flag & 1 for flag in vector)


if __name__ == "__main__":
    main()
