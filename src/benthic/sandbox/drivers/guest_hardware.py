"""What a virtual machine is made of, gathered from a spec and the store, whoever emulates it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benthic.sandbox.boot import Kernel
from benthic.sandbox.drivers.accelerator import Accelerator
from benthic.sandbox.drivers.disks import layer_disk
from benthic.sandbox.drivers.qemu_command import Board, Hardware
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest import build_init
from benthic.sandbox.images import Store, chosen_layers
from benthic.sandbox.images.derived import derived
from benthic.sandbox.images.initramfs import BootFile, write_initramfs
from benthic.sandbox.linux import HomeState
from benthic.sandbox.records import MIB, SandboxSpec, SnapshotRef

LEAST_MEMORY_BYTES = 64 * MIB
KERNEL_MEMORY_BYTES = 48 * MIB
"""Of the guest's kernel, beside what the sandbox may use."""

OWNER = "machine-"
"""Before a sandbox's id: who holds its layers in the store."""


def collect_hardware(
    board: Board,
    accelerator: Accelerator,
    kernel: Kernel,
    store: Store,
    spec: SandboxSpec,
    home: Path,
    snapshot: SnapshotRef | None,
) -> tuple[Hardware, tuple[str, ...]]:
    """A machine's parts, and the digests of its layers, held for this home from now on.

    Raises:
        StartFailed: a part cannot be made, or there are too many layers for its disks.
    """
    limits = spec.limits
    digests = chosen_layers(store, spec.image, spec.layers)
    store.hold(owner(home), (*digests, *(snapshot.layers if snapshot else ())))
    layers = tuple(layer_disk(store, digest) for digest in digests)
    if len(layers) + 1 > board.max_disks:
        most = board.max_disks - 1
        raise StartFailed(f"{len(layers)} layers are more than the {most} disks of a {board.kind}; merge some")
    hardware = Hardware(
        board=board,
        accelerator=accelerator,
        memory_bytes=max(limits.memory_bytes, LEAST_MEMORY_BYTES) + KERNEL_MEMORY_BYTES,
        num_cpus=max(1, min(round(limits.cpus + 0.49), os.cpu_count() or 1)),
        num_processes=limits.num_processes,
        shm_bytes=min(limits.memory_bytes // 4, limits.disk_bytes),
        num_files=limits.num_files,
        kernel=kernel.image,
        initramfs=_archive(store, kernel.chosen(board.modules)),
        layers=layers,
    )
    return hardware, digests


def saved_shape(hardware: Hardware, digests: Sequence[str]) -> dict[str, Any]:
    """What a saved memory fits: it holds addresses of devices and the content of disks."""
    return {
        "machine": hardware.board.machine,
        "accelerator": " ".join(hardware.accelerator.arguments()),
        "memory_mib": hardware.memory_mib,
        "num_cpus": hardware.num_cpus,
        "layers": list(digests),
    }


def owner(home: Path) -> str:
    """Who holds a machine's layers in the store."""
    return f"{OWNER}{machine_name(home)}"


def machine_name(home: Path) -> str:
    """What a home's process, group and layers are named by: its own name, or that of the home it was woken in."""
    return str(HomeState(home).load().get("name", home.name))


def _archive(store: Store, modules: Sequence[Path]) -> Path:
    """The first file system of a machine: init, and its modules in loading order."""
    init = build_init()
    files = {"init": BootFile(init)}
    files |= {f"modules/{index:02d}.ko": BootFile(path, 0o600) for index, path in enumerate(modules)}
    recipe = " ".join(["boot archive 1", init.name, *map(str, modules)])
    return derived(store, recipe, [], lambda path: write_initramfs(store, [], path, files))
