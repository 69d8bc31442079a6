"""Firecracker: microVMs by its API, where the program is there and a guest boots under KVM.

This is the part that can be held against a fake API: which requests make a machine, in which order, and what each
refusal means. The stream to init goes over a vsock that Firecracker offers as a unix socket. On a machine without
usable KVM the probe says so, and QEMU's `microvm` takes the kind.
"""

import asyncio
import shutil
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benthic.sandbox.drivers.accelerator import kvm_obstacle
from benthic.sandbox.drivers.qemu_command import KERNEL_WORDS
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.linux.unix_sockets import short_path
from benthic.sandbox.records import MIB, ProbeResult

PROGRAM = "firecracker"
INIT_PORT = 1024
"""Of the vsock, on which init listens."""
GUEST_CID = 3
API_S = 10.0
ANSWER_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class FirecrackerMachine:
    """What a machine is made of; paths are the host's."""

    kernel: Path
    initramfs: Path
    layers: tuple[Path, ...]
    """EROFS files, lowest first; the guest sees them as vda, vdb, ..."""
    upper: Path
    memory_bytes: int
    num_cpus: int
    vsock: Path
    """The unix socket that Firecracker makes."""


class FirecrackerApi:
    """A client of one Firecracker process, by its API socket."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def start(self, machine: FirecrackerMachine) -> None:
        """Describes a machine and starts it.

        Raises:
            StartFailed: Firecracker refuses; the message has its reason.
        """
        words = f"{KERNEL_WORDS} layers={len(machine.layers)} -- --boot"
        await self._put("machine-config", vcpu_count=machine.num_cpus, mem_size_mib=-(-machine.memory_bytes // MIB))
        await self._put(
            "boot-source",
            kernel_image_path=str(machine.kernel),
            initrd_path=str(machine.initramfs),
            boot_args=words,
        )
        for index, layer in enumerate(machine.layers):
            await self._drive(f"layer{index}", layer, is_read_only=True)
        await self._drive("upper", machine.upper, is_read_only=False)
        await self._put("vsock", guest_cid=GUEST_CID, uds_path=str(machine.vsock))
        await self._put("actions", action_type="InstanceStart")

    async def pause(self) -> None:
        """Stops its processors."""
        await self._ask("PATCH", "vm", {"state": "Paused"})

    async def resume(self) -> None:
        """Lets them go on."""
        await self._ask("PATCH", "vm", {"state": "Resumed"})

    async def save(self, state: Path, memory: Path) -> None:
        """Writes a paused machine into two files."""
        await self._put("snapshot/create", snapshot_type="Full", snapshot_path=str(state), mem_file_path=str(memory))

    async def load(self, state: Path, memory: Path) -> None:
        """Begins as a saved machine, whose memory is mapped privately: clones share what they do not write."""
        backend = {"backend_type": "File", "backend_path": str(memory)}
        await self._put("snapshot/load", snapshot_path=str(state), mem_backend=backend, resume_vm=True)

    async def _drive(self, name: str, path: Path, *, is_read_only: bool) -> None:
        await self._put(
            f"drives/{name}", drive_id=name, path_on_host=str(path), is_read_only=is_read_only, is_root_device=False
        )

    async def _put(self, path: str, **fields: Any) -> None:
        await self._ask("PUT", path, fields)

    async def _ask(self, method: str, path: str, fields: dict[str, Any]) -> None:
        try:
            with short_path(self._socket) as socket:
                transport = httpx.AsyncHTTPTransport(uds=socket)
                async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=API_S) as client:
                    answer = await client.request(method, f"/{path}", json=fields)
        except (httpx.HTTPError, OSError) as error:
            raise StartFailed(f"Firecracker does not answer at {self._socket}: {error!r}", stage=path) from None
        if answer.status_code != 204:
            why = f"{answer.status_code}: {answer.text[:300]}"
            raise StartFailed(f"Firecracker refused {method} /{path} ({why})", stage=path)


async def connect_vsock(path: Path, port: int = INIT_PORT) -> tuple[StreamReader, StreamWriter]:
    """A stream to a port inside, by Firecracker's handshake: `CONNECT <port>`, answered by `OK <number>`.

    Raises:
        ConnectionError: nobody listens there, or the answer is none.
    """
    with short_path(path) as short:
        reader, writer = await asyncio.open_unix_connection(short)
    try:
        writer.write(f"CONNECT {port}\n".encode())
        answer = await asyncio.wait_for(reader.readline(), API_S)
        if not answer.startswith(b"OK ") or len(answer) > ANSWER_BYTES or not answer.endswith(b"\n"):
            raise ConnectionRefusedError(f"no one listens on port {port} inside: {answer[:ANSWER_BYTES]!r}")
    except BaseException as error:
        writer.close()
        if isinstance(error, TimeoutError | ValueError):
            raise ConnectionAbortedError(f"Firecracker did not finish its handshake: {error!r}") from None
        raise
    return reader, writer


def probe_firecracker() -> ProbeResult:
    """Whether it can be tried here: the program, then KVM."""
    if shutil.which(PROGRAM) is None:
        detail = f"there is no {PROGRAM} on the PATH; no Debian package has it, its releases do"
    else:
        detail = kvm_obstacle() or "the program and KVM are there; its machines are not started by this version"
    return ProbeResult(kind="microvm", driver="firecracker", is_working=False, detail=detail)
