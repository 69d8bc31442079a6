"""Full virtual machines: a PC with PCI (q35), and a qcow2 disk over its template's."""

from pathlib import Path

from benthic.sandbox.drivers.qemu import QemuDriver
from benthic.sandbox.drivers.qemu_command import Board
from benthic.sandbox.images import Store

VM = Board(
    kind="vm",
    name="qemu",
    machine="q35,usb=off,vmport=off,smm=off,sata=off,i8042=off",
    bus="pci",
    max_disks=24,
    disk_format="qcow2",
    modules=("virtio_pci", "virtio_console", "virtio_blk", "erofs", "overlay"),
)


def vm_driver(state_root: Path, store: Store) -> QemuDriver:
    """The driver of kind `vm`."""
    return QemuDriver(VM, state_root, store)
