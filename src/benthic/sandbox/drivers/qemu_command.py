"""QEMU's command line for one sandbox: what its machine is made of, all of it named by open descriptors.

QEMU opens nothing of ours by path: memory, disks, sockets and state come as descriptors (`Files`), so that it can run
under a host uid that may read nothing. The guest sees processor, memory, disks, and one port to init.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benthic.sandbox.drivers.accelerator import Accelerator
from benthic.sandbox.records import MIB, Kind

PROGRAM = "qemu-system-x86_64"
PORT_NAME = "benthic"
CONSOLE_BYTES = 1 << 16
KERNEL_WORDS = (
    "console=ttyS0 quiet panic=-1 reboot=t mitigations=off audit=0 cryptomgr.notests random.trust_cpu=on "
    "tsc=reliable no_timer_check noautogroup psi=0 cgroup_disable=memory lsm=landlock,yama"
)
"""Nothing in the machine is worth hiding from its own root, and nobody reads its statistics; what each word saves is
some of an emulated boot, and of every clone's first command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One shape of machine."""

    kind: Kind
    name: str
    """Of the driver."""
    machine: str
    bus: Literal["device", "pci"]
    """How virtio devices are attached: memory-mapped, or PCI."""
    max_disks: int
    disk_format: Literal["raw", "qcow2"]
    """Of the disk that a sandbox writes."""
    modules: tuple[str, ...]
    """The kernel modules of its devices and file systems, without what these need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Everything that machines cloned from one template have in common."""

    board: Board
    accelerator: Accelerator
    memory_bytes: int
    num_cpus: int
    num_processes: int
    shm_bytes: int
    """Of the guest's shared memory folder, `/dev/shm`."""
    num_files: int
    kernel: Path
    initramfs: Path
    layers: tuple[Path, ...]
    """EROFS files, lowest first."""

    @property
    def memory_mib(self) -> int:
        """Guest memory, in whole MiB."""
        return -(-self.memory_bytes // MIB)

    @property
    def init_words(self) -> str:
        """What the guest's init is told by the kernel's command line; `boot.c` reads it."""
        limits = f"threads={self.num_processes} shm_bytes={self.shm_bytes} shm_files={self.num_files}"
        return f"layers={len(self.layers)} {limits} -- --boot"


@dataclass(slots=True)
class Descriptors:
    """What a QEMU inherits. Numbers are the same on both sides of its start."""

    numbers: dict[str, int] = field(default_factory=dict)

    def path(self, name: str) -> str:
        """A path inside QEMU that opens what a descriptor is of."""
        return f"/proc/self/fd/{self.numbers[name]}"


def command_line(
    hardware: Hardware, descriptors: Descriptors, *, name: str, is_template: bool, is_clone: bool
) -> list[str]:
    """The arguments of a QEMU.

    Args:
        descriptors: with `memory`, `port`, `control`, `upper`, `layer0`..., and for a template `kernel`, `initramfs`.
        name: seen in the host's list of processes.
        is_template: its memory is written to the file; else the file stays and the machine has its own changes.
        is_clone: it waits for a state to load instead of starting.
    """
    board, memory = hardware.board, hardware.memory_mib
    share, memory_path = "on" if is_template else "off", descriptors.path("memory")
    return [
        PROGRAM,
        *("-name", name, "-nodefaults", "-no-user-config", "-nographic", "-no-reboot"),
        *("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"),
        *("-machine", f"{board.machine},memory-backend=memory", *hardware.accelerator.arguments()),
        *("-smp", str(hardware.num_cpus), "-m", f"{memory}M"),
        *("-object", f"memory-backend-file,id=memory,size={memory}M,share={share},mem-path={memory_path}"),
        *_stream("control", descriptors), *("-mon", "chardev=control,mode=control"),
        *("-chardev", f"ringbuf,id=console,size={CONSOLE_BYTES}", "-serial", "chardev:console"),
        *_stream("port", descriptors),
        *("-device", f"virtio-serial-{board.bus},max_ports=2"),
        *("-device", f"virtserialport,chardev=port,name={PORT_NAME},nr=1"),
        *_disks(hardware, descriptors),
        *(("-S", "-incoming", "defer") if is_clone else _kernel(hardware, descriptors)),
    ]  # fmt: skip


def _stream(name: str, descriptors: Descriptors) -> tuple[str, str]:
    return "-chardev", f"socket,id={name},fd={descriptors.numbers[name]},server=on,wait=off"


def _disks(hardware: Hardware, descriptors: Descriptors) -> list[str]:
    arguments = []
    for index in range(len(hardware.layers)):
        arguments += _disk(hardware.board, f"layer{index}", "raw", descriptors, is_written=False)
    if hardware.board.disk_format == "qcow2":
        arguments += _node("base", "qcow2", descriptors, is_written=False)
    return arguments + _disk(hardware.board, "upper", hardware.board.disk_format, descriptors, is_written=True)


def _disk(board: Board, name: str, format: str, descriptors: Descriptors, *, is_written: bool) -> list[str]:
    return [
        *_node(name, format, descriptors, is_written=is_written),
        *("-device", f"virtio-blk-{board.bus},drive={name},serial={name}"),
    ]


def _node(name: str, format: str, descriptors: Descriptors, *, is_written: bool) -> list[str]:
    read_only = "off" if is_written else "on"
    file = f"{name}-file"
    backing = ",backing=base" if format == "qcow2" and is_written else ""
    return [
        *(
            "-blockdev",
            f"driver=file,node-name={file},filename={descriptors.path(name)},read-only={read_only},locking=off",
        ),
        *("-blockdev", f"driver={format},node-name={name},file={file},read-only={read_only}{backing}"),
    ]


def _kernel(hardware: Hardware, descriptors: Descriptors) -> tuple[str, ...]:
    words = f"{KERNEL_WORDS} {hardware.accelerator.kernel_words()} {hardware.init_words}"
    return "-kernel", descriptors.path("kernel"), "-initrd", descriptors.path("initramfs"), "-append", words


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """What QEMU gets of our environment: nothing but where programs lie."""
    return {"PATH": inherited.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C"}
