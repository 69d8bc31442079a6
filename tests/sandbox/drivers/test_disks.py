"""The files behind a virtual machine's disks."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benthic.sandbox.drivers.disks import copy_sparse, empty_overlay, make_upper, to_qcow2
from benthic.sandbox.records import MIB, Limits

needs_ext4 = pytest.mark.skipif(shutil.which("mkfs.ext4", path="/usr/sbin:/sbin") is None, reason="e2fsprogs missing")
needs_qemu_img = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="Debian's qemu-utils is not installed")


def test_a_copy_keeps_content_and_holes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        for offset in (0, 3 * MIB, 7 * MIB + 5):
            file.seek(offset)
            file.write(b"here")
        file.truncate(64 * MIB)
    copy_sparse(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert (tmp_path / "copy").stat().st_blocks * 512 < MIB


@needs_ext4
@pytest.mark.parametrize(("disk_mib", "num_files"), [(24, 300), (64, 100_000), (1024, 50_000)])
def test_the_disk_to_write_on_holds_what_the_limits_say_and_costs_little(
    tmp_path: Path, disk_mib: int, num_files: int
) -> None:
    make_upper(tmp_path / "upper", Limits(disk_bytes=disk_mib * MIB, num_files=num_files))
    assert (tmp_path / "upper").stat().st_blocks * 512 < MIB
    told = subprocess.run(["/usr/sbin/dumpe2fs", "-h", tmp_path / "upper"], capture_output=True, text=True, check=True)
    facts = dict(line.split(":", 1) for line in told.stdout.splitlines() if ":" in line)
    free = int(facts["Free blocks"]) * int(facts["Block size"])
    assert 0.999 * disk_mib * MIB <= free <= disk_mib * MIB
    assert 0.8 * num_files <= int(facts["Free inodes"]) <= num_files


@needs_qemu_img
def test_an_overlay_and_its_base_become_one_disk(tmp_path: Path) -> None:
    raw, base, overlay = tmp_path / "raw", tmp_path / "base", tmp_path / "overlay"
    raw.write_bytes(b"base" * (MIB // 4))
    to_qcow2(raw, base)
    empty_overlay(base, overlay)
    assert overlay.stat().st_size < MIB
    to_qcow2(overlay, tmp_path / "joined", base=base)
    subprocess.run(["qemu-img", "convert", "-O", "raw", tmp_path / "joined", tmp_path / "back"], check=True)
    assert (tmp_path / "back").read_bytes() == raw.read_bytes()
