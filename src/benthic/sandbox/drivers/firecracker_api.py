"""What is asked of a Firecracker process, and in which order: by its API, and by its vsock for a stream to init.

Every path is relative to the folder that Firecracker runs in (`firecracker_process.py`). So a saved machine, which
remembers the paths of its disks and of its vsock, finds those of the clone that it is loaded into.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Any

import httpx

from benthic.sandbox.drivers.qemu_command import KERNEL_WORDS, Hardware
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.linux.unix_sockets import socket_of

API, VSOCK = "api.sock", "vsock.sock"
INIT_PORT = 1024
"""Of the vsock, on which init listens."""
GUEST_CID = 3
API_S = 10.0
ANSWER_BYTES = 64


class FirecrackerApi:
    """A client of one Firecracker process.

    Every call raises StartFailed if Firecracker refuses or does not answer; the message has its reason.
    """

    def __init__(self, folder: Path, uid: int) -> None:
        """`folder` is the one that it runs in, as host uid `uid`."""
        self._folder, self._uid = folder, uid

    async def boot(self, hardware: Hardware) -> None:
        """Describes a machine and starts it; its disks are vda, vdb, ... in the order of these calls."""
        words = f"{KERNEL_WORDS} reboot=k ordered=1 vsock={INIT_PORT} {hardware.init_words}"
        await self._put("machine-config", vcpu_count=hardware.num_cpus, mem_size_mib=hardware.memory_mib)
        await self._put("boot-source", kernel_image_path="kernel", initrd_path="initramfs", boot_args=words)
        for index in range(len(hardware.layers)):
            await self._drive(f"layer{index}", is_read_only=True)
        await self._drive("upper", is_read_only=False)
        await self._put("vsock", guest_cid=GUEST_CID, uds_path=VSOCK)
        await self._put("actions", action_type="InstanceStart")

    async def is_running(self) -> bool:
        """False if it is paused or was never started."""
        return bool((await self._ask("GET", "")).get("state") == "Running")

    async def pause(self) -> None:
        """Stops its processors."""
        await self._ask("PATCH", "vm", {"state": "Paused"})

    async def resume(self) -> None:
        """Lets them go on."""
        await self._ask("PATCH", "vm", {"state": "Resumed"})

    async def save(self, state: str, memory: str) -> None:
        """Writes a paused machine into two files."""
        await self._put("snapshot/create", snapshot_type="Full", snapshot_path=state, mem_file_path=memory)

    async def load(self, state: str, memory: str) -> None:
        """Begins as a saved machine, whose memory is mapped privately: clones share what they do not write."""
        backend = {"backend_type": "File", "backend_path": memory}
        await self._put("snapshot/load", snapshot_path=state, mem_backend=backend, resume_vm=True)

    async def wait_ready(self, limit_s: float) -> None:
        """Until it answers, a moment after its start."""
        deadline = asyncio.get_running_loop().time() + limit_s
        while True:
            try:
                await self._ask("GET", "")
                return
            except StartFailed:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(0.005)

    async def _drive(self, name: str, *, is_read_only: bool) -> None:
        await self._put(
            f"drives/{name}", drive_id=name, path_on_host=name, is_read_only=is_read_only, is_root_device=False
        )

    async def _put(self, path: str, **fields: Any) -> None:
        await self._ask("PUT", path, fields)

    async def _ask(self, method: str, path: str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
        stage = path or "api"
        try:
            with socket_of(self._folder / API, self._uid) as address:
                transport = httpx.AsyncHTTPTransport(uds=address)
                async with httpx.AsyncClient(transport=transport, base_url="http://api", timeout=API_S) as client:
                    answer = await client.request(method, f"/{path}", json=fields)
        except (httpx.HTTPError, OSError) as error:
            raise StartFailed(f"Firecracker does not answer in {self._folder}: {error!r}", stage=stage) from None
        if not answer.is_success:
            why = f"{answer.status_code}: {answer.text[:300]}"
            raise StartFailed(f"Firecracker refused {method} /{path} ({why})", stage=stage)
        try:
            said = answer.json() if answer.content else {}
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise StartFailed(f"Firecracker answers {method} /{path} by {answer.text[:300]!r}", stage=stage)
        return said


async def connect_vsock(path: Path, uid: int, port: int = INIT_PORT) -> tuple[StreamReader, StreamWriter]:
    """A stream to a port inside, by Firecracker's handshake: `CONNECT <port>`, answered by `OK <number>`.

    Raises:
        OSError: nobody listens there, or the answer is none.
    """
    with socket_of(path, uid) as address:
        reader, writer = await asyncio.open_unix_connection(address)
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
