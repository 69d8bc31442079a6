"""A `Host` in memory: one counter a sandbox, which `exec` of `add N` raises; enough to see what ran, and how often."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from benthic.sandbox.errors import SandboxDied, TrajectoryDiverged, UnknownSandbox
from benthic.sandbox.host import Answer, Logged, Rebuilt, Request, SandboxInfo
from benthic.sandbox.records import Checkpoint, Chunk, Reason, Result, SandboxSpec, SnapshotRef, State
from benthic.sandbox.trajectory import request_hash
from benthic.sandbox.wire import pack_result

PAGE_CALLS = 100


class FakeHost:
    def __init__(self, prefix: str = "0", *, start_s: float = 0.0, shared: "dict[str, Any] | None" = None) -> None:
        self.prefix, self.start_s = prefix, start_s
        self.infos: dict[str, SandboxInfo] = {}
        self.keys: dict[str, str] = {}
        self.logs: dict[str, list[tuple[Request, asyncio.Future[Answer]]]] = {} if shared is None else shared
        self.ran: dict[str, list[str]] = {}
        self.fed: list[bytes | None] = []
        self.leases: dict[str, float] = {}
        self.num_creates = 0
        self.num_calls = 0
        self.forks: dict[tuple[str, int], int] = {}
        self.pages: list[int] = []
        """Where each page began that was asked for."""
        self.num_starting = 0
        self.peak_starting = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def create(
        self, spec: SandboxSpec, *, key: str | None = None, snapshot: SnapshotRef | None = None
    ) -> SandboxInfo:
        if key in self.keys:
            while self.keys[key] not in self.infos:
                await asyncio.sleep(0.005)
            return self.infos[self.keys[key]]
        self.num_creates += 1
        sandbox_id = f"{self.prefix}{self.num_creates:011x}"
        if key is not None:
            self.keys[key] = sandbox_id
        self.num_starting += 1
        self.peak_starting = max(self.peak_starting, self.num_starting)
        await asyncio.sleep(self.start_s)
        self.num_starting -= 1
        info = SandboxInfo(id=sandbox_id, spec=spec, state=State.RUNNING, created_s=time.time())
        self.infos[sandbox_id], self.logs[sandbox_id], self.ran[sandbox_id] = info, [], []
        return info

    async def info(self, sandbox_id: str) -> SandboxInfo:
        if sandbox_id not in self.infos and sandbox_id in self.logs:  # another host's, of a shared folder
            return SandboxInfo(id=sandbox_id, spec=SandboxSpec(), state=State.DEAD, reason=Reason.HOST_LOST)
        if sandbox_id not in self.infos:
            raise UnknownSandbox(f"sandbox {sandbox_id} is unknown")
        return replace(self.infos[sandbox_id], next_seq=len(self.logs[sandbox_id]))

    async def sandboxes(self) -> list[SandboxInfo]:
        return [info for info in self.infos.values() if info.reason is not Reason.CLOSED]

    async def call(self, sandbox_id: str, seq: int, request: Request) -> Answer:
        info = await self.info(sandbox_id)
        if info.state is State.DEAD:
            raise SandboxDied(sandbox_id, info.reason or Reason.CRASHED, info.detail)
        log = self.logs[sandbox_id]
        self.num_calls += 1
        if seq < len(log):
            if log[seq][0] != request:
                raise TrajectoryDiverged(f"call {seq} differs from the logged one")
            return replace(await asyncio.shield(log[seq][1]), is_replayed=True)
        assert seq == len(log), (seq, len(log))
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        log.append((request, done))
        self.ran[sandbox_id].append(str(request.arguments.get("shell", request.verb)))
        await self.gate.wait()
        if request.verb == "read":
            answer = Answer(data=b"content of " + str(request.arguments["path"]).encode(), seq=seq)
        else:
            text = f"{len(self.ran[sandbox_id])}: ".encode() + request.data
            value, data = pack_result(Result(returncode=0, stdout=text, stderr=b"\xff"))
            answer = Answer(value=value, data=data, seq=seq)
        done.set_result(answer)
        return answer

    async def answers(self, sandbox_id: str, first_seq: int) -> list[Logged]:
        self.pages.append(first_seq)
        calls = self.logs[sandbox_id][first_seq : first_seq + PAGE_CALLS]
        return [
            Logged(request_hash=request_hash(request), answer=replace(done.result(), is_replayed=True))
            for request, done in calls
            if done.done()
        ]

    async def stream(self, sandbox_id: str, seq: int, request: Request) -> AsyncIterator[Chunk | Answer]:
        answer = await self.call(sandbox_id, seq, request)
        for index in range(5):
            yield Chunk("stdout", b"piece %d\n" % index)
        yield Chunk("stderr", b"odd")
        yield answer

    async def signal(self, sandbox_id: str, seq: int, signal: int) -> None:
        self.ran[sandbox_id].append(f"signal {signal} to {seq}")

    async def feed(self, sandbox_id: str, seq: int, data: bytes | None) -> None:
        await self.gate.wait()
        self.fed.append(data)

    async def output(self, sandbox_id: str, seq: int) -> AsyncIterator[Chunk]:
        yield Chunk("stdout", b"output of %d" % seq)

    async def wait(self, sandbox_id: str, seq: int) -> Result:
        await self.gate.wait()
        return Result(returncode=3, stdout=b"out", stderr=b"err")

    async def resize(self, sandbox_id: str, seq: int, rows: int, columns: int) -> None:
        self.ran[sandbox_id].append(f"resize {rows} {columns}")

    async def expose(self, sandbox_id: str, port: int) -> str:
        return f"/run/{sandbox_id}.{port}"

    async def pause(self, sandbox_id: str) -> None:
        self.infos[sandbox_id] = replace(self.infos[sandbox_id], state=State.PAUSED)

    async def resume(self, sandbox_id: str) -> None:
        self.infos[sandbox_id] = replace(self.infos[sandbox_id], state=State.RUNNING)

    async def snapshot(self, sandbox_id: str, name: str | None = None, *, seq: int | None = None) -> SnapshotRef:
        return SnapshotRef(id=name or f"snap-{sandbox_id}", kind="function", seq=len(self.logs[sandbox_id]) - 1)

    async def fork(self, sandbox_id: str, count: int, *, seq: int | None = None) -> list[SandboxInfo]:
        if seq is not None and self.forks.setdefault((sandbox_id, seq), count) != count:
            raise TrajectoryDiverged(f"call {seq} differs from the logged one")
        keys = [None if seq is None else f"fork of {sandbox_id} at {seq}: {index}" for index in range(count)]
        return [await self.create(self.infos[sandbox_id].spec, key=key) for key in keys]

    async def branch(self, sandbox_id: str, seq: int, *, key: str | None = None) -> SandboxInfo:
        return await self.create(self.infos[sandbox_id].spec, key=key)

    async def rebuild(self, sandbox_id: str, *, may_rerun: bool = False) -> Rebuilt:
        self.infos[sandbox_id] = SandboxInfo(id=sandbox_id, spec=SandboxSpec(), state=State.RUNNING)
        self.ran[sandbox_id] = []
        return Rebuilt(snapshot_seq=-1, num_run=len(self.logs[sandbox_id]))

    async def checkpoint(self, sandbox_id: str, last_seq: int | None = None) -> Checkpoint:
        return Checkpoint(sandbox_id, len(self.logs[sandbox_id]) - 1 if last_seq is None else last_seq, "ab")

    async def renew(self, sandbox_id: str, lease_s: float) -> None:
        self.leases[sandbox_id] = lease_s

    async def log(self, sandbox_id: str) -> list[dict[str, Any]]:
        return [{"verb": request.verb, **request.arguments} for request, _ in self.logs[sandbox_id]]

    async def close(self, sandbox_id: str) -> None:
        await self.info(sandbox_id)
        self.infos[sandbox_id] = replace(self.infos[sandbox_id], state=State.DEAD, reason=Reason.CLOSED)
