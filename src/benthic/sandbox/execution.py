"""Runs one call in a living sandbox: each verb becomes a few words to init, under the job id of its place.

A job id is known to init until the answer is in the log. So a call that is run again after a crash joins the first
run, and every verb here may be repeated.
"""

import asyncio
import json
import posixpath
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from benthic.errors import RequestError, shown
from benthic.sandbox.driver import Machine
from benthic.sandbox.errors import NotSupported
from benthic.sandbox.guest import Guest, Terminal
from benthic.sandbox.host import Answer, Request
from benthic.sandbox.records import CallResult, Command, FunctionCall, Reason, Result, SandboxSpec
from benthic.sandbox.trajectory import Trajectory
from benthic.sandbox.wire import decode, encode, pack_result

NO_PROGRAM = 127
"""What init ends with where there is no such program, as shells do."""

# What a sandbox without a worker of its own runs for `call`: the request on stdin, the outcome as stdout's last line.
_CALLER = """
import json, sys, traceback
asked = json.load(sys.stdin)
out = sys.stdout
try:
    names = {"__name__": "benthic_call"}
    exec(compile(asked["source"], "<call>", "exec"), names)
    said = {"value": names[asked["name"]](*asked["args"], **asked["kwargs"])}
    said = json.dumps(said)
except BaseException:
    said = json.dumps({"error": traceback.format_exc(limit=20)})
out.write("\\n" + said)
out.flush()
"""


class Execution:
    """What runs the calls of one sandbox."""

    def __init__(self, sandbox_id: str, spec: SandboxSpec, machine: Machine, guest: Guest, log: Trajectory) -> None:
        self.sandbox_id = sandbox_id
        self.log = log
        self.spec = spec
        self.machine = machine
        self.guest = guest
        self.streamed: dict[int, asyncio.Future[None]] = {}
        """Places whose command waits for its reader; the future is done once it has started."""
        self._verbs: Mapping[str, Callable[[int, Request], Awaitable[Answer]]] = {
            "exec": self._exec,
            "spawn": self._spawn,
            "feed": self._feed,
            "signal": self._signal,
            "call": self._call,
            "read": self._read,
            "write": self._write,
            "list": self._list,
            "stat": self._stat,
            "remove": self._remove,
            "upload": self._upload,
            "download": self._download,
        }

    def job(self, seq: int) -> str:
        """The job id of a place. It names the sandbox, since a clone's init remembers the jobs of its origin."""
        return f"{self.sandbox_id}-{seq}"

    async def run(self, seq: int, request: Request) -> Answer:
        """See the module's docstring.

        Raises:
            GuestLost: init is gone; the outcome is not known.
            SandboxError: the call was refused.
            RequestError: its arguments make no sense.
        """
        request = replace(request, arguments=self._with_whole_paths(request.arguments))
        try:
            return await self._verbs[request.verb](seq, request)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise RequestError(f"arguments of {request.verb} are not right: {error!r} in {shown(request)}") from error

    def _with_whole_paths(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """A path that is not absolute lies below the sandbox's folder, for files as for commands."""
        paths = {name: arguments[name] for name in ("path", "folder", "cwd") if isinstance(arguments.get(name), str)}
        return arguments | {name: posixpath.join(self.spec.cwd, path) for name, path in paths.items()}

    async def exit(self, seq: int) -> Result:
        """The result of a spawned command, once it has ended."""
        spawned = self.log.entry(seq).answer
        kills = int(spawned.value.get("memory_kills", 0)) if spawned else 0
        return await self._judged(await self.guest.wait(self.job(seq)), kills)

    async def _exec(self, seq: int, request: Request) -> Answer:
        command = decode(Command, {**request.arguments, "stdin": ""})
        command = replace(command, stdin=request.data)
        kills = await self.machine.out_of_memory_kills()
        started = self.streamed.get(seq)
        if started is None:
            result = await self.guest.run(self.job(seq), command)
        else:
            await self.guest.start(self.job(seq), command, holds_output=True)
            if not started.done():
                started.set_result(None)
            result = await self.guest.wait(self.job(seq))
        value, data = pack_result(await self._judged(result, kills))
        return Answer(value=value, data=data)

    async def _judged(self, result: Result, kills_before: int) -> Result:
        """The kernel's count of processes ended for memory, and not init, says whether that was the reason."""
        if result.returncode == 0 or result.reason not in (Reason.EXITED, Reason.SIGNALLED):
            return result
        if await self.machine.out_of_memory_kills() > kills_before:
            return replace(result, reason=Reason.OUT_OF_MEMORY)
        return result

    async def _spawn(self, seq: int, request: Request) -> Answer:
        terminal = request.arguments.get("terminal")
        facts = {name: value for name, value in request.arguments.items() if name not in ("terminal", "keeps_input")}
        command = replace(decode(Command, {**facts, "stdin": ""}), stdin=request.data)
        kills = await self.machine.out_of_memory_kills()
        await self.guest.start(
            self.job(seq),
            command,
            terminal=Terminal(*decode(tuple[int, int], terminal, "terminal")) if terminal else None,
            keeps_input=bool(request.arguments.get("keeps_input")),
        )
        return Answer(value={"memory_kills": kills})

    async def _feed(self, seq: int, request: Request) -> Answer:
        """Input goes in once: init counts what it has taken, and the log says what was fed before."""
        process = request.arguments["process"]
        info = next((info for info in await self.guest.jobs() if info.job == self.job(process)), None)
        if info is None or info.state == "ended":
            return Answer()  # as a pipe whose reader is gone
        rest = request.data[max(0, info.fed_bytes - self._fed_before(process, seq)) :]
        if rest:
            await self.guest.feed(info.job, rest)
        if request.arguments.get("is_last"):
            await self.guest.feed(info.job, None)
        return Answer()

    def _fed_before(self, process: int, seq: int) -> int:
        """Bytes of input that a spawned command was given before a place."""
        calls = [self.log.entry(place.seq) for place in self.log.places()[:seq] if place.verb in ("spawn", "feed")]
        return sum(
            len(call.request.data)
            for call in calls
            if call.seq == process or call.request.arguments.get("process") == process
        )

    async def _signal(self, seq: int, request: Request) -> Answer:
        await self.guest.signal(self.job(request.arguments["process"]), request.arguments["signal"])
        return Answer()

    async def _call(self, seq: int, request: Request) -> Answer:
        call = decode(FunctionCall, request.arguments)
        try:
            result = await self.machine.call(call)
        except NotSupported:
            result = await self._called(seq, call)
        value = encode(replace(result, stdout=b"", stderr=b""))
        return Answer(value={**value, "num_stdout_bytes": len(result.stdout)}, data=result.stdout + result.stderr)

    async def _called(self, seq: int, call: FunctionCall) -> CallResult:
        """By a Python of the image."""
        asked = {"source": call.source, "name": call.name, "args": list(call.args), "kwargs": call.kwargs}
        command = Command(
            argv=("python3", "-I", "-c", _CALLER), stdin=json.dumps(asked).encode(), timeout_s=call.timeout_s
        )
        kills = await self.machine.out_of_memory_kills()
        job = f"{self.job(seq)}.call"
        result = await self._judged(await self.guest.run(job, command), kills)
        await self.guest.forget(job)
        printed, _, said = result.stdout.rpartition(b"\n")
        outcome = _outcome(said) if result.returncode == 0 else None
        if result.returncode == NO_PROGRAM:
            outcome = {"error": "the image has no python3 to call by; take one that has, such as python:host"}
        if outcome is None:
            outcome = {"error": f"the call ended ({result.reason}, code {result.returncode}) without a value"}
        return CallResult(
            value=outcome.get("value"),
            error=outcome.get("error"),
            stdout=printed,
            stderr=result.stderr,
            reason=result.reason,
            usage=result.usage,
            duration_s=result.duration_s,
        )

    async def _read(self, seq: int, request: Request) -> Answer:
        data = await self.guest.files.read(**request.arguments, max_bytes=self.spec.limits.upload_bytes)
        return Answer(data=data)

    async def _write(self, seq: int, request: Request) -> Answer:
        await self.guest.files.write(data=request.data, job=self.job(seq), **request.arguments)
        return Answer()

    async def _list(self, seq: int, request: Request) -> Answer:
        entries = await self.guest.files.list(**request.arguments, max_entries=self.spec.limits.num_files)
        return Answer(value={"entries": encode(entries)})

    async def _stat(self, seq: int, request: Request) -> Answer:
        return Answer(value=encode(await self.guest.files.stat(**request.arguments)))

    async def _remove(self, seq: int, request: Request) -> Answer:
        await self.guest.files.remove(job=self.job(seq), **request.arguments)
        return Answer()

    async def _upload(self, seq: int, request: Request) -> Answer:
        limits = self.spec.limits
        await self.guest.files.upload(
            request.data,
            max_bytes=limits.upload_bytes,
            max_files=limits.num_files,
            job=self.job(seq),
            **request.arguments,
        )
        return Answer()

    async def _download(self, seq: int, request: Request) -> Answer:
        limits = self.spec.limits
        pieces = self.guest.files.download(
            max_bytes=limits.upload_bytes, max_files=limits.num_files, **request.arguments
        )
        return Answer(data=b"".join([piece async for piece in pieces]))


def _outcome(said: bytes) -> dict[str, Any] | None:
    try:
        outcome = json.loads(said)
    except ValueError:
        return None
    return outcome if isinstance(outcome, dict) else None
