"""MicroVMs: QEMU's `microvm`, a machine without PCI, firmware setup or legacy devices, all virtio."""

from pathlib import Path

from benthic.sandbox.drivers.qemu import QemuDriver
from benthic.sandbox.drivers.qemu_command import Board
from benthic.sandbox.images import Store

MICROVM = Board(
    kind="microvm",
    name="qemu-microvm",
    machine="microvm,acpi=on,rtc=on,isa-serial=on,x-option-roms=off,auto-kernel-cmdline=off,usb=off,pcie=off",
    bus="device",
    max_disks=22,
    disk_format="raw",
    modules=("virtio_mmio", "virtio_console", "virtio_blk", "erofs", "overlay"),
)
"""ACPI tells the kernel where the devices are; a distribution's kernel has no other way to find them."""


def microvm_driver(state_root: Path, store: Store) -> QemuDriver:
    """The driver of kind `microvm`."""
    return QemuDriver(MICROVM, state_root, store)
