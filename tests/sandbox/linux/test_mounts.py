"""Mounts that need root: in namespaces of their own, so nothing is left whatever happens."""

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.sandbox.linux import mounts
from benthic.sandbox.linux.namespaces import id_map, in_network_of, in_private_mounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
FIRST = 0x6FFF_0000


@pytest.fixture
def shifted() -> Iterator[int]:
    namespace = id_map(FIRST)
    yield namespace
    os.close(namespace)


@pytest.fixture
def layers(tmp_path: Path) -> Path:
    for name in ("base", "disk/upper", "disk/work"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "base" / "tool").write_text("old")
    (tmp_path / "base" / "home").mkdir()
    os.chown(tmp_path / "base" / "home", 1000, 1000)
    return tmp_path


def mount_layers(folder: Path, namespace: int) -> Path:
    at = Path("/mnt")  # others than root cannot enter pytest's folders
    mounts.mount_tmpfs(at, size_bytes=1 << 16, num_files=8)
    for name in ("base", "disk", "root"):
        (at / name).mkdir()
    mounts.attach(mounts.clone(folder / "base", id_map=namespace, is_read_only=True), at / "base")
    mounts.attach(mounts.clone(folder / "disk", id_map=namespace), at / "disk")
    mounts.mount_overlay([at / "base"], at / "disk" / "upper", at / "disk" / "work", at / "root")
    return at / "root"


def test_a_layer_belongs_to_the_sandbox_that_sees_it_and_its_changes_come_to_disk_unshifted(
    layers: Path, shifted: int
) -> None:
    def use() -> tuple[int, int]:
        root = mount_layers(layers, shifted)
        command = ["setpriv", f"--reuid={FIRST + 1000}", f"--regid={FIRST + 1000}", "--clear-groups"]
        subprocess.run([*command, "touch", root / "home" / "new"], check=True)
        (root / "tool").unlink()
        return (root / "home").stat().st_uid, (root / "home" / "new").stat().st_uid

    assert in_private_mounts(use) == (FIRST + 1000, FIRST + 1000)
    upper = layers / "disk" / "upper"
    assert (upper / "home" / "new").stat().st_uid == 1000
    assert os.major((upper / "tool").lstat().st_rdev) == 0  # a whiteout
    assert (layers / "base" / "tool").read_text() == "old"


def test_nothing_of_a_private_namespace_is_seen_outside(layers: Path, shifted: int) -> None:
    in_private_mounts(lambda: mount_layers(layers, shifted))
    assert Path("/mnt") not in mounts.mounts_below(Path("/mnt"))


def test_an_error_in_a_private_namespace_reaches_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        in_private_mounts(lambda: mounts.clone(tmp_path / "missing"))


@pytest.mark.parametrize("kind", ["bytes", "files"])
def test_a_memory_file_system_is_full_at_its_limits(tmp_path: Path, kind: str) -> None:
    def fill() -> int | None:
        mounts.mount_tmpfs(tmp_path, size_bytes=1 << 20, num_files=64)
        try:
            for number in range(100):
                (tmp_path / str(number)).write_bytes(bytes(1 << 16 if kind == "bytes" else 0))
        except OSError as error:
            return error.errno
        return None

    assert in_private_mounts(fill) == errno.ENOSPC


def test_a_mount_is_found_below_a_folder_with_a_space_and_taken_off(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()

    def use() -> tuple[list[Path], bool, bool]:
        mounts.mount_tmpfs(folder, size_bytes=1 << 16, num_files=8)
        found = mounts.mounts_below(tmp_path)
        return found, mounts.unmount(folder), mounts.unmount(folder)

    assert in_private_mounts(use) == ([folder], True, False)


def test_a_loop_device_goes_with_its_mount(tmp_path: Path) -> None:
    image, at = tmp_path / "image", tmp_path / "at"
    at.mkdir()
    subprocess.run(["mkfs.ext4", "-q", image, "4M"], check=True)

    def device() -> str:
        return subprocess.run(["losetup", "-j", image], capture_output=True, text=True, check=True).stdout

    def use() -> tuple[str, bool]:
        mounts.mount_image(image, at)
        (at / "file").write_text("kept")
        return device(), mounts.unmount(at)

    attached, is_unmounted = in_private_mounts(use)
    assert str(image) in attached
    assert is_unmounted
    assert device() == ""


def test_a_socket_stays_in_the_network_that_it_was_made_in() -> None:
    with subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None and other.stdout is not None
        other.stdin.write(b".")
        other.stdin.flush()
        other.stdout.read(1)
        names = in_network_of(other.pid, lambda: [name for _, name in socket.if_nameindex()])
    assert names == ["lo"]
    assert len(socket.if_nameindex()) >= 1
