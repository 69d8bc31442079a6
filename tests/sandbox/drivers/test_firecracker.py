"""Firecracker's API and vsock handshake, held against a server that plays Firecracker."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from benthic.sandbox.drivers.firecracker import FirecrackerApi, FirecrackerMachine, connect_vsock, probe_firecracker
from benthic.sandbox.errors import StartFailed
from benthic.sandbox.records import MIB


class FakeFirecracker:
    """Answers 204, or refuses one path; keeps what it was asked."""

    def __init__(self, refused: str = "") -> None:
        self.refused, self.asked = refused, list[tuple[str, str, dict[str, Any]]]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        self.asked.append((method, path, json.loads(await reader.readexactly(length))))
        body = b'{"fault_message": "not like this"}'
        if path == self.refused:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        else:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()


def machine(folder: Path) -> FirecrackerMachine:
    paths = {name: folder / name for name in ("kernel", "initramfs", "upper", "vsock")}
    return FirecrackerMachine(layers=(folder / "a", folder / "b"), memory_bytes=128 * MIB, num_cpus=1, **paths)


def against(
    fake: FakeFirecracker, folder: Path, work: Callable[[FirecrackerApi], Coroutine[Any, Any, None]]
) -> list[tuple[str, str, dict[str, Any]]]:
    async def run() -> None:
        async with await asyncio.start_unix_server(fake.serve, folder / "api"):
            await work(FirecrackerApi(folder / "api"))

    asyncio.run(run())
    return fake.asked


def test_a_machine_is_described_before_it_is_started(tmp_path: Path) -> None:
    asked = against(FakeFirecracker(), tmp_path, lambda api: api.start(machine(tmp_path)))
    paths = [path for _, path, _ in asked]
    assert paths[-1] == "/actions" and asked[-1][2] == {"action_type": "InstanceStart"}
    assert paths[:-1] == [
        "/machine-config",
        "/boot-source",
        *(f"/drives/{n}" for n in ("layer0", "layer1", "upper")),
        "/vsock",
    ]
    assert asked[0][2] == {"vcpu_count": 1, "mem_size_mib": 128}
    assert [fields["is_read_only"] for _, path, fields in asked if path.startswith("/drives")] == [True, True, False]


def test_a_refusal_names_the_request_and_firecrackers_reason(tmp_path: Path) -> None:
    fake = FakeFirecracker(refused="/boot-source")
    with pytest.raises(StartFailed, match="PUT /boot-source .400.*not like this"):
        against(fake, tmp_path, lambda api: api.start(machine(tmp_path)))
    assert "/actions" not in [path for _, path, _ in fake.asked]


def test_a_snapshot_is_taken_of_a_paused_machine_and_loaded_with_shared_memory(tmp_path: Path) -> None:
    async def work(api: FirecrackerApi) -> None:
        await api.pause()
        await api.save(tmp_path / "state", tmp_path / "memory")
        await api.resume()
        await api.load(tmp_path / "state", tmp_path / "memory")

    asked = against(FakeFirecracker(), tmp_path, work)
    assert [(method, path) for method, path, _ in asked] == [
        ("PATCH", "/vm"),
        ("PUT", "/snapshot/create"),
        ("PATCH", "/vm"),
        ("PUT", "/snapshot/load"),
    ]
    assert asked[-1][2]["mem_backend"] == {"backend_type": "File", "backend_path": str(tmp_path / "memory")}


def test_nobody_at_the_socket_is_a_failed_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="does not answer"):
        asyncio.run(FirecrackerApi(tmp_path / "none").pause())


@pytest.mark.parametrize(("answer", "is_open"), [(b"OK 1073741824\n", True), (b"", False), (b"OK " + b"9" * 99, False)])
def test_the_vsock_is_open_only_after_its_handshake(tmp_path: Path, answer: bytes, is_open: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"CONNECT 1024\n"
        writer.write(answer)
        if is_open:
            writer.write(b"hello")
        writer.close()

    async def run() -> bytes:
        async with await asyncio.start_unix_server(serve, tmp_path / "vsock"):
            reader, writer = await connect_vsock(tmp_path / "vsock")
            data = await reader.read()
            writer.close()
            return data

    if is_open:
        assert asyncio.run(run()) == b"hello"
    else:
        with pytest.raises(ConnectionError):
            asyncio.run(run())


def test_the_probe_says_what_is_missing() -> None:
    probed = probe_firecracker()
    assert not probed.is_working and probed.detail
