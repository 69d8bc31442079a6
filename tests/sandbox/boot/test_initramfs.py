"""The archive that a kernel unpacks, read back by a reader of the format's own rules."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benthic.sandbox.boot import initramfs


def _read(archive: bytes) -> dict[str, tuple[int, bytes]]:
    """Name -> mode and content of a newc archive."""
    entries, offset = {}, 0
    while True:
        assert archive[offset : offset + 6] == b"070701"
        fields = [int(archive[offset + 6 + 8 * index : offset + 14 + 8 * index], 16) for index in range(13)]
        mode, size, name_size = fields[1], fields[6], fields[11]
        name = archive[offset + 110 : offset + 110 + name_size - 1].decode()
        start = -(-(offset + 110 + name_size) // 4) * 4
        if name == "TRAILER!!!":
            return entries
        entries[name] = (mode, archive[start : start + size])
        offset = -(-(start + size) // 4) * 4


def _made(tmp_path: Path) -> bytes:
    init, module = tmp_path / "init", tmp_path / "00-virtio.ko"
    init.write_bytes(b"\x7fELF and so on")
    module.write_bytes(b"module")
    return initramfs(init, [module])


def test_init_is_executable_and_modules_keep_their_order(tmp_path: Path) -> None:
    entries = _read(_made(tmp_path))
    assert entries["init"] == (0o100700, b"\x7fELF and so on")
    assert entries["modules/00.ko"] == (0o100600, b"module")
    assert entries["proc"][0] == 0o040755


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    assert _made(tmp_path) == _made(tmp_path)


@pytest.mark.skipif(shutil.which("cpio") is None, reason="Debian's cpio is not installed")
def test_another_program_reads_the_archive(tmp_path: Path) -> None:
    done = subprocess.run(["cpio", "-t", "--quiet"], input=_made(tmp_path), capture_output=True, check=True)
    assert b"modules/00.ko" in done.stdout.splitlines()
