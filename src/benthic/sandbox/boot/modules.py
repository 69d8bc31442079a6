"""Kernel modules: which ones a virtual machine needs, and in what order they must be loaded.

The package has no `modules.dep` (it is made when a kernel is installed), but each module names what it needs.
"""

import lzma
import re
from collections.abc import Iterable
from pathlib import Path

VSOCK = "vmw_vsock_virtio_transport"
MODULES = ("virtio_mmio", "virtio_pci", "virtio_console", "virtio_blk", VSOCK, "erofs", "overlay")
"""What virtual machines use; one that is built into the kernel is not there as a file."""

_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


def in_loading_order(files: Iterable[Path], wanted: tuple[str, ...] = MODULES) -> list[Path]:
    """The files of modules and of all that they need, each after what it needs.

    Args:
        files: what there is to choose from, as `name.ko` or `name.ko.xz`; numbers before the name are left out.
    """
    named = {module_name(path): path for path in files}
    order: list[str] = []

    def visit(name: str) -> None:
        if name in named and name not in order:
            for needed in needs(named[name]):
                visit(needed)
            order.append(name)

    for name in wanted:
        visit(name)
    return [named[name] for name in order]


def needs(module: Path) -> list[str]:
    """The modules that a module says it depends on."""
    found = _DEPENDS.search(module_bytes(module))
    return [name.replace("-", "_") for name in found.group(1).decode().split(",") if name] if found else []


def module_name(path: Path) -> str:
    """As the kernel calls it: `virtio-rng.ko.xz` is virtio_rng."""
    return re.sub(r"^\d\d-", "", path.name).partition(".")[0].replace("-", "_")


def module_bytes(path: Path) -> bytes:
    """A module's file, unpacked."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data
