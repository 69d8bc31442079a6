"""The host's side of `zygote.py`: one zygote a jail, started with the first call, one connection a call.

Request: a length (u32, little endian) and JSON. Answer: one byte once the call has begun, then a length, a JSON header
and three parts: the result as JSON, stdout, stderr. The answer is a guest's word and is bounded and checked here.
"""

import asyncio
import contextlib
import json
import os
import signal
import struct
from asyncio import StreamReader, StreamWriter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benthic.errors import SandboxError
from benthic.sandbox.drivers.zygote import LISTENER
from benthic.sandbox.errors import NotSupported, SandboxDied
from benthic.sandbox.linux import Launch, ProcessId, spawn_detached
from benthic.sandbox.linux.unix_sockets import listening, short_path
from benthic.sandbox.records import CallResult, FunctionCall, Reason, Usage

SOCKET, LOG = "zygote.sock", "zygote.log"
NUM_CALLS = 1000
"""After so many a zygote is replaced, so that nothing can pile up."""
NAMESPACES = ("--user", "--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup")
"""What it joins of the jail: all."""
_SCRIPT = Path(__file__).with_name("zygote.py")
_HEADER_BYTES = 1 << 16
_GRACE_S = 5.0
"""For an answer after a call's own time, before the host ends it."""
_START_LIMIT_S = 20.0


@dataclass(slots=True)
class ZygoteClient:
    """Calls functions in one jail."""

    home: Path
    init: ProcessId
    """The jail's first process, whose namespaces the zygote joins."""
    launch: Launch
    config: dict[str, Any]
    """See `zygote.main`."""
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def call(self, call: FunctionCall) -> CallResult:
        """Runs one call.

        Raises:
            NotSupported: the jail has no Python.
            SandboxDied: it cannot be reached any more.
        """
        request = {
            "source": call.source,
            "name": call.name,
            "args": call.args,
            "kwargs": call.kwargs,
            "timeout_s": call.timeout_s,
        }
        frame = json.dumps(request).encode()
        for _ in range(3):  # a zygote that ends between two calls is replaced; what has not begun can be sent again
            answer = await self._try(struct.pack("<I", len(frame)) + frame, call.timeout_s)
            if answer is not None:
                return answer
            if not self.init.is_alive():
                break
        raise self._failure()

    async def _try(self, frame: bytes, timeout_s: float | None) -> CallResult | None:
        """None: the call has not begun."""
        kills = self._kills()
        try:
            reader, writer = await self._connect()
        except ConnectionError:
            return None
        try:
            writer.write(frame)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            try:
                await asyncio.wait_for(reader.readexactly(1), _START_LIMIT_S)
            except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
                return None
            limit_s = None if timeout_s is None else timeout_s + _GRACE_S
            return await asyncio.wait_for(self._answer(reader, kills), limit_s)
        except TimeoutError:
            return CallResult(error="it did not end within its time", reason=Reason.TIMEOUT)
        finally:
            writer.close()  # the monitor ends the call, if it still runs

    async def _answer(self, reader: StreamReader, kills: int) -> CallResult:
        try:
            (length,) = struct.unpack("<I", await reader.readexactly(4))
            header = json.loads(await reader.readexactly(min(length, _HEADER_BYTES)))
            limits = (self.config["result_bytes"], self.config["output_bytes"], self.config["output_bytes"])
            lengths = [min(int(length), limit) for length, limit in zip(header["lengths"], limits, strict=True)]
            value, stdout, stderr = [await reader.readexactly(length) for length in lengths]
            usage = Usage(cpu_s=float(header["cpu_s"]), peak_memory_bytes=int(header["peak_memory_bytes"]))
            reason = self._reason(bool(header["in_time"]), int(header["returncode"]), kills)
            outcome = _value_or_error(value, reason, int(header["returncode"]), bool(header["too_long"]))
            duration_s = float(header["duration_s"])
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, TypeError, KeyError, struct.error):
            reason = Reason.OUT_OF_MEMORY if self._kills() > kills else Reason.CRASHED
            return CallResult(error="the call ended without an answer", reason=reason)
        return CallResult(**outcome, stdout=stdout, stderr=stderr, reason=reason, usage=usage, duration_s=duration_s)

    def _reason(self, in_time: bool, returncode: int, kills: int) -> Reason:
        if not in_time:
            return Reason.TIMEOUT
        if returncode >= 0:
            return Reason.EXITED
        return Reason.OUT_OF_MEMORY if self._kills() > kills else Reason.SIGNALLED

    def _kills(self) -> int:
        return 0 if self.launch.group is None else self.launch.group.out_of_memory_kills()

    async def _connect(self) -> tuple[StreamReader, StreamWriter]:
        path = self.home / SOCKET
        with contextlib.suppress(ConnectionError, FileNotFoundError):
            return await _open(path)
        async with self._starting:
            with contextlib.suppress(ConnectionError, FileNotFoundError):
                return await _open(path)  # another call has started one meanwhile
            await self._start(path)
        return await _open(path)

    async def _start(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        # The host's root becomes the jail's on the way; an ordinary user is it already.
        keep = ["--preserve-credentials"] if os.geteuid() else []
        command = ["nsenter", f"--target={self.init.pid}", *NAMESPACES, *keep, "--", "python3", "-I", "-"]
        command = self.launch.command([*command, json.dumps(self.config)])
        with listening(path) as listener, _SCRIPT.open("rb") as script, (self.home / LOG).open("wb") as log:
            fds = {0: script.fileno(), 1: log.fileno(), 2: log.fileno(), LISTENER: listener.fileno()}
            await asyncio.to_thread(spawn_detached, command, fds)

    def _failure(self) -> SandboxError:
        with contextlib.suppress(OSError):
            text = (self.home / LOG).read_text(errors="replace")
            if "python3" in text:  # nsenter's words: it found none
                return NotSupported(f"sandbox {self.home.name} has no Python of its own: {text.strip()[-500:]}")
        return SandboxDied(self.home.name, Reason.CRASHED, "its warm Python cannot be reached")


async def _open(path: Path) -> tuple[StreamReader, StreamWriter]:
    with short_path(path) as address:
        return await asyncio.open_unix_connection(address)


def _value_or_error(part: bytes, reason: Reason, returncode: int, is_too_long: bool) -> dict[str, Any]:
    """`value` or `error` of a result; the part is whatever the call wrote."""
    if reason is Reason.TIMEOUT:
        return {"error": "it ran out of time"}
    if reason is Reason.OUT_OF_MEMORY:
        return {"error": "it ran out of memory"}
    if reason is Reason.SIGNALLED:
        return {"error": f"it was ended by {_signal_name(-returncode)}"}
    if is_too_long:
        return {"error": f"its result is longer than {len(part)} bytes as JSON; return less, or write it to a file"}
    try:
        answer = json.loads(part)
    except (ValueError, RecursionError):
        answer = None
    if isinstance(answer, dict) and "value" in answer:
        return {"value": answer["value"]}
    if isinstance(answer, dict) and isinstance(answer.get("error"), str):
        return {"error": answer["error"]}
    return {"error": f"it ended with {returncode} without returning"}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
