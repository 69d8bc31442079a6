"""Boot archives and disks hold what the layers' lists say, whoever makes them, and are made once."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from benthic.sandbox.errors import ImageError
from benthic.sandbox.images import Store, ensure_tiny
from benthic.sandbox.images.disk import write_disk, write_ext4
from benthic.sandbox.images.entry import Entry
from benthic.sandbox.images.initramfs import BootFile, write_initramfs
from benthic.sandbox.images.writer import Policy, TreeWriter

MIB = 1 << 20
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
needs_qemu = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs the Debian package qemu-utils")
needs_ext4 = pytest.mark.skipif(shutil.which("debugfs", path=PATH) is None, reason="needs the package e2fsprogs")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store")
    yield made
    assert made.owners() == []


def tool_layer(store: Store) -> str:
    """A layer above the tiny image: a setuid program of somebody, twice by hard link, and a file that goes."""

    def fill(writer: TreeWriter) -> None:
        writer.folder(Entry(path="opt", type="folder"))
        entry = Entry(
            path="opt/tool", type="file", mode=0o4750, uid=1000, gid=1000, size=4, modified_ns=1_700_000_000 * 10**9
        )
        writer.file(entry, BytesIO(b"tool"))
        writer.hard_link("opt/tool2", "opt/tool")
        writer.other(Entry(path="etc/hostname", type="whiteout", mode=0))

    return store.add_layer(fill, kind="toolkit", source="test", policy=Policy(strip_set_id=False)).digest


def debugfs(disk: Path, command: str) -> str:
    done = subprocess.run(["debugfs", "-R", command, str(disk)], capture_output=True, text=True, env={"PATH": PATH})
    return done.stdout


@pytest.mark.skipif(shutil.which("cpio") is None, reason="needs the Debian package cpio")
def test_a_boot_archive_unpacks_to_the_stacked_layers_and_the_files_beside_them(store: Store, tmp_path: Path) -> None:
    init = tmp_path / "init"
    init.write_text("#!/bin/sh\n")
    layers = [*ensure_tiny(store).layers, tool_layer(store)]
    archive = tmp_path / "boot.cpio"
    write_initramfs(store, layers, archive, {"init": BootFile(init), "lib/modules/virtio.ko": BootFile(init, 0o644)})
    with open(archive, "rb") as data:
        listed = subprocess.run(["cpio", "-itvn", "--quiet"], stdin=data, capture_output=True, text=True).stdout
    rows = {row.split(" -> ")[0].split()[-1]: row.split() for row in listed.splitlines()}
    assert rows["opt/tool"][:4] == ["-rwsr-x---", "2", "1000", "1000"]
    assert rows["work"][2:4] == ["1000", "1000"]
    assert rows["tmp"][0] == "drwxrwxrwt"
    assert "etc/hostname" not in rows
    assert rows["lib/modules"][0] == "drwxr-xr-x"
    (tmp_path / "out").mkdir()
    with open(archive, "rb") as data:
        subprocess.run(["cpio", "-id", "--quiet"], stdin=data, cwd=tmp_path / "out", check=True)
    assert (tmp_path / "out/opt/tool").read_bytes() == b"tool"
    assert (tmp_path / "out/bin/sh").readlink() == Path("/bin/busybox")
    assert (tmp_path / "out/bin/busybox").stat().st_size > 100_000


@needs_ext4
def test_a_disk_has_owners_and_bits_of_the_lists_and_passes_the_check(store: Store, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    write_ext4(store, [*ensure_tiny(store).layers, tool_layer(store)], disk, size_bytes=16 * MIB)
    checked = subprocess.run(["e2fsck", "-fn", str(disk)], capture_output=True, text=True, env={"PATH": PATH})
    assert checked.returncode == 0, checked.stdout
    tool = debugfs(disk, "stat /opt/tool")
    assert "Mode:  04750" in tool
    assert "User:  1000" in tool
    assert "Links: 2" in tool
    assert "User:     0" in debugfs(disk, "stat /bin/busybox")
    assert "hostname" not in debugfs(disk, "ls /etc")
    assert disk.stat().st_blocks * 512 < 12 * MIB


@needs_ext4
@pytest.mark.skipif(os.geteuid() != 0, reason="plays an ordinary user by dropping root")
def test_an_ordinary_user_makes_the_same_disk() -> None:
    with tempfile.TemporaryDirectory() as home:
        shutil.chown(home, 12345, 12345)
        disk = Path(home, "disk")
        pid = os.fork()
        if pid == 0:  # a child has everything imported already, from wherever only root may read it
            try:
                os.setgroups([])
                os.setresgid(12345, 12345, 12345)
                os.setresuid(12345, 12345, 12345)
                store = Store(Path(home, "store"))
                write_ext4(store, [*ensure_tiny(store).layers, tool_layer(store)], disk, size_bytes=16 * MIB)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert "Mode:  04750" in debugfs(disk, "stat /opt/tool")
        assert "User:  1000" in debugfs(disk, "stat /work")
        assert "User:     0" in debugfs(disk, "stat /bin/sh")


@needs_ext4
@needs_qemu
def test_a_qcow2_disk_holds_what_the_raw_one_holds(store: Store, tmp_path: Path) -> None:
    layers = ensure_tiny(store).layers
    write_disk(store, layers, tmp_path / "disk.qcow2", size_bytes=16 * MIB, format="qcow2")
    assert (tmp_path / "disk.qcow2").read_bytes()[:4] == b"QFI\xfb"
    command = ["qemu-img", "convert", "-O", "raw", str(tmp_path / "disk.qcow2"), str(tmp_path / "disk")]
    subprocess.run(command, check=True)
    assert "Mode:  01777" in debugfs(tmp_path / "disk", "stat /tmp")
    assert not list(tmp_path.glob(".*"))


@needs_ext4
def test_a_disk_that_is_too_small_says_so(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"mkfs.ext4 failed.*"):
        write_ext4(store, ensure_tiny(store).layers, tmp_path / "disk", size_bytes=MIB)
