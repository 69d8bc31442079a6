"""The archive that a virtual machine's kernel unpacks into memory first: init and a few modules, nothing else.

It is a `newc` cpio archive, written here: no program is needed, and the same content gives the same bytes.
"""

import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

FOLDERS = ("dev", "proc", "sys", "modules", "layers", "upper", "root")
_TRAILER = "TRAILER!!!"


def initramfs(init: Path, modules: Sequence[Path]) -> bytes:
    """The archive's bytes.

    Args:
        init: a static program, started as `/init`.
        modules: kernel modules in loading order, kept as `/modules/00.ko` and so on.
    """
    entries = [_entry(index, name, stat.S_IFDIR | 0o755, b"") for index, name in enumerate(FOLDERS, 1)]
    entries.append(_entry(20, "init", stat.S_IFREG | 0o700, init.read_bytes()))
    for index, module in enumerate(modules):
        entries.append(_entry(30 + index, f"modules/{index:02d}.ko", stat.S_IFREG | 0o600, module.read_bytes()))
    return _joined([*entries, _entry(0, _TRAILER, 0, b"")])


def _entry(inode: int, name: str, mode: int, data: bytes) -> bytes:
    path = name.encode() + b"\0"
    links, size = (2 if stat.S_ISDIR(mode) else 1), len(data)
    fields = (inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(head + path) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _joined(entries: Iterable[bytes]) -> bytes:
    archive = b"".join(entries)
    return archive + b"\0" * (-len(archive) % 512)
