"""Which kinds of sandboxes a machine can be asked to make: where the programs are, the kind must work."""

import asyncio
import os
import shutil

import pytest

from benthic.errors import SandboxError
from benthic.sandbox.boot.kernel import find_kernel
from benthic.sandbox.records import Kind

_PACKAGES = {
    "bwrap": "bubblewrap",
    "crun": "crun",
    "mkfs.ext4": "e2fsprogs",
    "qemu-img": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
    "runc": "runc",
    "runsc": "runsc",
}
CONTAINER_DRIVERS = ("runc", "gvisor", "docker")
"""Those beside crun, which is what kind `container` takes first."""
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def require_kind(kind: Kind) -> None:
    """Skips the test if this machine lacks what the kind needs, with the Debian package's name."""
    if lacking := _lacking(kind):
        pytest.skip(f"{kind}: {lacking}")


def require_driver(name: str) -> None:
    """Skips the test if this machine lacks what a driver of containers needs."""
    if os.geteuid() != 0:
        pytest.skip(f"{name}: containers need root")
    if name == "docker":
        reason = _without_daemon()
    else:
        reason = _without("runsc" if name == "gvisor" else name)
    if reason:
        pytest.skip(f"{name}: {reason}")


def _without_daemon() -> str | None:
    docker_api = pytest.importorskip("benthic.sandbox.drivers.docker_api")
    try:
        asyncio.run(docker_api.DockerApi(docker_api.daemon_socket()).version())
    except SandboxError as error:
        return str(error)
    return None


def _lacking(kind: Kind) -> str | None:
    match kind:
        case "function":
            return _without("bwrap")
        case "container":
            if os.geteuid() != 0:
                return "containers need root"
            return _without("crun") and _without("runc")
        case "microvm":
            return _without("qemu-system-x86_64") or _without_kernel()
        case "vm":
            return _without("qemu-system-x86_64") or _without("qemu-img") or _without("mkfs.ext4") or _without_kernel()


def _without(program: str) -> str | None:
    if shutil.which(program, path=_PATH):
        return None
    return f"there is no {program}: install the Debian package {_PACKAGES[program]}"


def _without_kernel() -> str | None:
    try:
        find_kernel()
    except SandboxError as error:
        return f"no kernel for guests: {error}"
    return None
