"""Loading order of kernel modules, from what each says it needs."""

import lzma
from pathlib import Path

from benthic.sandbox.boot.modules import in_loading_order, module_bytes, module_name


def _module(path: Path, needs: str) -> Path:
    data = b"\x7fELF...\0license=GPL\0depends=" + needs.encode() + b"\0name=x\0"
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)
    return path


def test_each_module_comes_after_what_it_needs(tmp_path: Path) -> None:
    files = [
        _module(tmp_path / "virtio_blk.ko", "virtio_ring,virtio"),
        _module(tmp_path / "virtio.ko", "virtio_ring"),
        _module(tmp_path / "virtio-ring.ko.xz", ""),
        _module(tmp_path / "unrelated.ko", "virtio"),
    ]
    order = [module_name(path) for path in in_loading_order(files, ("virtio_blk",))]
    assert order == ["virtio_ring", "virtio", "virtio_blk"]


def test_a_module_that_is_built_into_the_kernel_is_left_out(tmp_path: Path) -> None:
    files = [_module(tmp_path / "erofs.ko", "libcrc32c")]
    assert in_loading_order(files, ("ext4", "erofs")) == files


def test_a_packed_module_is_unpacked(tmp_path: Path) -> None:
    packed = _module(tmp_path / "07-virtio-blk.ko.xz", "virtio")
    assert module_name(packed) == "virtio_blk"
    assert module_bytes(packed).startswith(b"\x7fELF")
