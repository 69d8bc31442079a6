"""QEMU's machine protocol: one JSON object a line over a unix socket, one client at a time.

A connection is opened for one piece of work and closed after it, so that a host that takes a machine over never
waits for one that died. The peer is QEMU, not the guest, but a guest may have broken out of it: lines are bounded,
and what is not expected is an error.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benthic.sandbox.linux.unix_sockets import short_path

LINE_BYTES = 1 << 20
ANSWER_S = 30.0
_GIVEN = "given"
_FULL_SPEED = 1 << 40
"""Bytes a second: the machine is stopped, nothing else wants the disk."""


class QmpError(Exception):
    """QEMU refused a command."""


@asynccontextmanager
async def qmp(path: Path, *, answer_s: float = ANSWER_S) -> AsyncIterator["Qmp"]:
    """A session with the QEMU that listens at a path.

    Raises:
        QmpError: it refuses, or does not answer in time.
        OSError: nobody listens.
    """
    with short_path(path) as short:
        reader, writer = await asyncio.open_unix_connection(short, limit=LINE_BYTES)
    session = Qmp(reader, writer, answer_s)
    try:
        await session.greet()
        yield session
    finally:
        writer.close()


class Qmp:
    """An open session."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer_s: float) -> None:
        self._reader, self._writer, self._answer_s = reader, writer, answer_s

    async def greet(self) -> None:
        """Waits for QEMU's greeting and ends the negotiation."""
        greeting = await self._line()
        if "QMP" not in greeting:
            raise QmpError(f"expected a greeting, got {greeting!r}")
        await self.execute("qmp_capabilities")

    async def execute(self, command: str, **arguments: Any) -> Any:
        """Runs one command; underscores of argument names become hyphens. Returns what it returns."""
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._writer.write(json.dumps({"execute": command, "arguments": named}).encode() + b"\n")
        await self._writer.drain()
        return await self._answer(command)

    async def _answer(self, command: str) -> Any:
        while True:  # events come in between
            answer = await self._line()
            if "return" in answer:
                return answer["return"]
            if "error" in answer:
                raise QmpError(f"{command}: {answer['error'].get('desc', answer['error'])}")

    async def migrate_to(self, file: Path) -> None:
        """Writes the stopped machine into a new file."""
        await self.execute("migrate-set-parameters", max_bandwidth=_FULL_SPEED)
        with file.open("wb") as target:
            await self._give(target.fileno())
            await self.execute("migrate", uri=f"fd:{_GIVEN}")
            await self._migrated()

    async def migrate_from(self, file: Path) -> None:
        """Loads a machine that `migrate_to` has written; it stays stopped."""
        with file.open("rb") as source:
            await self._give(source.fileno())
            await self.execute("migrate-incoming", uri=f"fd:{_GIVEN}")
            await self._migrated()

    async def ignore_shared_memory(self, is_wanted: bool) -> None:
        """Whether memory that lies in a shared file is left out of what is written, and expected to be left out."""
        capability = {"capability": "x-ignore-shared", "state": is_wanted}
        await self.execute("migrate-set-capabilities", capabilities=[capability])

    async def _give(self, descriptor: int) -> None:
        """Hands QEMU an open file, for commands that take `fd:`."""
        line = json.dumps({"execute": "getfd", "arguments": {"fdname": _GIVEN}}).encode() + b"\n"
        # The stream cannot send one; nothing of ours is under way on it now.
        with socket.socket(fileno=os.dup(self._writer.get_extra_info("socket").fileno())) as sock:
            socket.send_fds(sock, [line], [descriptor])
        await self._answer("getfd")

    async def _migrated(self) -> None:
        pause_s = 0.002
        while True:
            info = await self.execute("query-migrate")
            status = info.get("status")
            if status == "completed":
                return
            if status in ("failed", "cancelled"):
                raise QmpError(f"migration {status}: {info.get('error-desc', 'no reason given')}")
            await asyncio.sleep(pause_s)
            pause_s = min(0.02, pause_s * 1.5)

    async def _line(self) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._answer_s):
                line = await self._reader.readline()
            answer = json.loads(line) if line else None
        except TimeoutError:
            raise QmpError(f"QEMU did not answer within {self._answer_s} s") from None
        except ValueError as error:  # a line without end, or one that is no JSON
            raise QmpError(f"QEMU makes no sense: {error}") from None
        if not isinstance(answer, dict):
            raise QmpError(f"expected an object, got {line[:80]!r}" if line else "QEMU closed the connection")
        return answer
