"""What an OCI runtime (crun, runc, runsc) is told of one sandbox: the `config.json` of its bundle.

Root inside is a host uid of the sandbox's own range and nobody on the host; init keeps the few capabilities that it
needs to become a command's user and to end commands, over that range only. Commands keep none.
"""

import json
from pathlib import Path
from typing import Any

from benthic.sandbox.records import MIB, Limits

INIT = "/dev/init"
"""Where init's program is inside: on the memory file system of /dev, so that no layer or snapshot ever has it."""
LISTEN_FD = 3
"""The first descriptor after stdio, as `--preserve-fds=1` leaves it."""
CONTROL = "/dev/control"
"""Where init makes its socket under a kernel of its own, that takes no descriptor; nobody else may enter it."""
HOSTNAME = "sandbox"
MAX_SHM_BYTES = 64 * MIB
SHM_SHARE = 4
"""Of the sandbox's memory, at most the reciprocal may be held by files in /dev/shm: they outlive their writers."""

_CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETPCAP",  # to drop the others for good
    "CAP_SETUID",
)
_NAMESPACES = ("cgroup", "ipc", "mount", "network", "pid", "user", "uts")
_MASKED = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/scsi",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def bundle_config(
    *,
    root: Path,
    init: Path,
    arguments: tuple[str, ...],
    first_uid: int,
    num_uids: int,
    limits: Limits,
    cgroup: str | None = None,
    control: Path | None = None,
) -> dict[str, Any]:
    """The whole of `config.json`.

    Args:
        root: the mounted root file system.
        init: its program, on the host; every folder above it can be entered by all.
        arguments: init's.
        first_uid: host uid of root inside; the next `num_uids - 1` follow.
        cgroup: where the runtime makes control groups itself, such as `/benthic/0123456789ab`; None: it stays in ours.
        control: a folder of the host for `CONTROL`; then /tmp is named too, or gVisor would put a memory file system
            without a limit there.
    """
    ids = [{"containerID": 0, "hostID": first_uid, "size": num_uids}]
    linux: dict[str, Any] = {
        "namespaces": [{"type": name} for name in _NAMESPACES],
        "uidMappings": ids,
        "gidMappings": ids,
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
    }
    if cgroup is not None:
        linux["cgroupsPath"] = cgroup
    return {
        "ociVersion": "1.0.2",
        "hostname": HOSTNAME,
        "root": {"path": str(root)},
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [INIT, *arguments],
            "env": [],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {kind: list(_CAPABILITIES) for kind in ("bounding", "effective", "permitted")},
            "rlimits": [{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}],
        },
        "mounts": _mounts(init, limits) + ([] if control is None else _own_kernel_mounts(root, control)),
        "linux": linux,
    }


MAX_TERMINALS = 64
"""Of one sandbox: all of a host's share one number (kernel.pty.max)."""


def shm_bytes(limits: Limits) -> int:
    """The size of /dev/shm."""
    return min(MAX_SHM_BYTES, limits.memory_bytes // SHM_SHARE)


def write_bundle(folder: Path, config: dict[str, Any]) -> None:
    """Makes a bundle of a configuration."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))


def _mounts(init: Path, limits: Limits) -> list[dict[str, Any]]:
    guarded = ("nosuid", "noexec", "nodev")
    return [
        _mount("/proc", "proc", "proc", *guarded),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755", "size=64k"),
        _mount(
            "/dev/pts",
            "devpts",
            "devpts",
            "nosuid",
            "noexec",
            "newinstance",
            "ptmxmode=0666",
            "mode=0620",
            f"max={MAX_TERMINALS}",
        ),
        _mount("/dev/shm", "tmpfs", "tmpfs", *guarded, "mode=1777", f"size={shm_bytes(limits)}", "nr_inodes=4096"),
        _mount("/sys", "sysfs", "sysfs", *guarded, "ro"),
        _mount(INIT, "bind", str(init), "bind", "ro", "nosuid", "nodev"),
    ]


def _own_kernel_mounts(root: Path, control: Path) -> list[dict[str, Any]]:
    return [
        _mount(CONTROL, "bind", str(control), "bind", "rw", "nosuid", "nodev", "noexec"),
        _mount("/tmp", "bind", str(root / "tmp"), "bind", "rw", "nosuid", "nodev"),
    ]


def _mount(destination: str, type_: str, source: str, *options: str) -> dict[str, Any]:
    return {"destination": destination, "type": type_, "source": source, "options": list(options)}
