"""Sandboxes of a fleet as a `Host`: what `Sandbox.create(host=RemoteHost(url))` talks to, a gateway or one agent.

Nothing is kept here that a killed client would miss: another process that makes the same calls in the same places gets
the same answers.
"""

import contextlib
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from benthic.errors import shown
from benthic.sandbox.errors import SandboxDied, UnknownSandbox
from benthic.sandbox.fleet.connection import Connection, Cut, Patience, understood
from benthic.sandbox.fleet.frames import CONTENT_TYPE, Frame, answer_of, item_of, logged_of, one_frame, request_frame
from benthic.sandbox.fleet.leases import LeaseKeeper
from benthic.sandbox.fleet.replay import ReplayPages
from benthic.sandbox.host import Answer, Logged, Rebuilt, Request, SandboxInfo
from benthic.sandbox.live import kept_chunks
from benthic.sandbox.records import Checkpoint, Chunk, Result, SandboxSpec, SnapshotRef
from benthic.sandbox.wire import decode, encode, unpack_error, unpack_result

T = TypeVar("T")

_ID = re.compile(r"[0-9a-f]{12}")


class RemoteHost:
    """A `Host` behind HTTP.

    Args:
        url: of a gateway or an agent: `http://host:port`, `https://host`, `unix:/path/of/socket`.
        token: of a project at the gateway, or the fleet's own at an agent.
        patience_s: how long nobody may answer before a call fails; a restart of anything in the fleet is shorter.
        lease_s: when set, every sandbox that this object made or called is renewed as long as this object lives; so
            long after that it is paused, and goes on with the next call.
        rebuild: sandboxes made here are made again from their logs, on another host, when theirs is lost.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        patience_s: float = 120.0,
        lease_s: float | None = None,
        rebuild: bool = False,
    ) -> None:
        self.connection = Connection(url, token=token, patience_s=patience_s)
        self._rebuild = rebuild
        self._leases = LeaseKeeper(self.renew, lease_s)
        self._pages = ReplayPages(self.answers)

    async def __aenter__(self) -> "RemoteHost":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection; the sandboxes live on."""
        await self._leases.aclose()
        await self.connection.aclose()

    async def create(
        self, spec: SandboxSpec, *, key: str | None = None, snapshot: SnapshotRef | None = None
    ) -> SandboxInfo:
        """See `Host`. Without a key, one that nobody else has is made, so that an attempt can be repeated."""
        body = {"spec": encode(spec), "key": key or uuid.uuid4().hex}
        body |= {"snapshot": encode(snapshot)} if snapshot is not None else {}
        body |= {"rebuild": True} if self._rebuild else {}
        info = self._read(SandboxInfo, await self.connection.json("POST", "/sandboxes", body))
        self._leases.hold(info.id)
        return info

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """See `Host`."""
        return self._read(SandboxInfo, await self._json("GET", sandbox_id, ""))

    async def sandboxes(self) -> list[SandboxInfo]:
        """See `Host`; at a gateway, those of the token's project."""
        return self._read(list[SandboxInfo], await self.connection.json("GET", "/sandboxes"))

    async def call(self, sandbox_id: str, seq: int, request: Request) -> Answer:
        """See `Host`."""
        self._leases.hold(sandbox_id)
        known = await self._pages.answer(sandbox_id, seq, request)
        if known is not None:
            return known
        body = request_frame(request).to_bytes()
        with _about(sandbox_id):
            response = await self.connection.send("POST", _path(sandbox_id, f"/calls/{seq}"), body, CONTENT_TYPE)
        answer = self._answer(response.content)
        await self._pages.told(sandbox_id, seq, answer)
        return answer

    async def answers(self, sandbox_id: str, first_seq: int) -> list[Logged]:
        """See `Host`. One attempt: whoever has no page asks call by call."""
        with _about(sandbox_id):
            path = _path(sandbox_id, f"/calls?first_seq={first_seq}")
            response = await self.connection.send("GET", path, b"", CONTENT_TYPE, patience_s=0.0)
        with understood(self.connection.url):
            return logged_of(response.content)

    async def stream(self, sandbox_id: str, seq: int, request: Request) -> AsyncIterator[Chunk | Answer]:
        """See `Host`. After a cut the stream is asked for again, and what has been seen is left out."""
        self._leases.hold(sandbox_id)
        known = await self._pages.answer(sandbox_id, seq, request)
        if known is not None:
            for chunk in kept_chunks(known):
                yield chunk
            yield known
            return
        body = request_frame(request).to_bytes()
        async for item in self._items("POST", sandbox_id, f"/streams/{seq}", body):
            if isinstance(item, Answer):
                await self._pages.told(sandbox_id, seq, item)
            yield item

    async def output(self, sandbox_id: str, seq: int) -> AsyncIterator[Chunk]:
        """See `Host`."""
        async for item in self._items("GET", sandbox_id, f"/jobs/{seq}/output", b""):
            if isinstance(item, Chunk):
                yield item

    async def wait(self, sandbox_id: str, seq: int) -> Result:
        """See `Host`."""
        answer = self._pages.exit(sandbox_id, seq)
        if answer is None:
            with _about(sandbox_id):
                path = _path(sandbox_id, f"/jobs/{seq}/wait")
                response = await self.connection.send("POST", path, b"", CONTENT_TYPE)
            answer = self._answer(response.content)
        if answer.error is not None:
            raise unpack_error(answer)
        with understood(self.connection.url):
            return unpack_result(answer.value, answer.data)

    async def signal(self, sandbox_id: str, seq: int, signal: int) -> None:
        """See `Host`."""
        await self._once("POST", sandbox_id, f"/jobs/{seq}/signal", {"signal": signal}, None)

    async def feed(self, sandbox_id: str, seq: int, data: bytes | None) -> None:
        """See `Host`.

        Raises:
            OutcomeUnknown: the agent was started anew in between, so that the input may have arrived or not.
        """
        incarnation = await self._incarnation(sandbox_id)
        query = "?end=1" if data is None else ""
        with _about(sandbox_id):
            path = _path(sandbox_id, f"/jobs/{seq}/input{query}")
            await self.connection.send("POST", path, data or b"", "application/octet-stream", incarnation)

    async def resize(self, sandbox_id: str, seq: int, rows: int, columns: int) -> None:
        """See `Host`."""
        await self._json("POST", sandbox_id, f"/jobs/{seq}/resize", {"rows": rows, "columns": columns})

    async def expose(self, sandbox_id: str, port: int) -> str:
        """See `Host`: the path is one on the sandbox's host, of use to programs there."""
        found = self._read(dict[str, str], await self._json("POST", sandbox_id, "/expose", {"port": port}))
        return found.get("path", "")

    async def pause(self, sandbox_id: str) -> None:
        """See `Host`."""
        await self._json("POST", sandbox_id, "/pause", {})

    async def resume(self, sandbox_id: str) -> None:
        """See `Host`."""
        await self._json("POST", sandbox_id, "/resume", {})

    async def snapshot(self, sandbox_id: str, name: str | None = None, *, seq: int | None = None) -> SnapshotRef:
        """See `Host`."""
        return self._read(
            SnapshotRef, await self._once("POST", sandbox_id, "/snapshot", {"name": name, "seq": seq}, seq)
        )

    async def fork(self, sandbox_id: str, count: int, *, seq: int | None = None) -> list[SandboxInfo]:
        """See `Host`; the new ones stay on the host of the old."""
        found = await self._once("POST", sandbox_id, "/fork", {"count": count, "seq": seq}, seq)
        forks = self._read(list[SandboxInfo], found)
        for info in forks:
            self._leases.hold(info.id)
        return forks

    async def branch(self, sandbox_id: str, seq: int, *, key: str | None = None) -> SandboxInfo:
        """See `Host`; the new one stays on the host of the old."""
        body = {"seq": seq, "key": key or uuid.uuid4().hex}
        info = self._read(SandboxInfo, await self._json("POST", sandbox_id, "/branch", body))
        self._leases.hold(info.id)
        return info

    async def rebuild(self, sandbox_id: str, *, may_rerun: bool = False) -> Rebuilt:
        """See `Host`; at a gateway, on the host that it is said to be on."""
        return self._read(Rebuilt, await self._json("POST", sandbox_id, "/rebuild", {"may_rerun": may_rerun}))

    async def checkpoint(self, sandbox_id: str, last_seq: int | None = None) -> Checkpoint:
        """See `Host`."""
        query = "" if last_seq is None else f"?last_seq={last_seq}"
        found = await self._json("GET", sandbox_id, f"/checkpoint{query}")
        with understood(self.connection.url):
            return Checkpoint(decode(str, found[0]), decode(int, found[1]), decode(str, found[2]))

    async def renew(self, sandbox_id: str, lease_s: float) -> None:
        """See `Host`."""
        await self._json("POST", sandbox_id, "/renew", {"lease_s": lease_s})

    async def log(self, sandbox_id: str) -> list[dict[str, Any]]:
        """See `Host`."""
        records: list[dict[str, Any]] = await self._json("GET", sandbox_id, "/log")
        return records

    async def close(self, sandbox_id: str) -> None:
        """See `Host`."""
        self._leases.release(sandbox_id)
        self._pages.drop(sandbox_id)
        await self._json("DELETE", sandbox_id, "")

    def _read(self, kind: type[T], value: Any) -> T:
        with understood(self.connection.url):
            return decode(kind, value)

    def _answer(self, body: bytes) -> Answer:
        with understood(self.connection.url):
            return answer_of(one_frame(body))

    def _item(self, read: Callable[[Frame], T], frame: Frame) -> T:
        with understood(self.connection.url):
            return read(frame)

    async def _json(self, method: str, sandbox_id: str, path: str, body: Any = None) -> Any:
        with _about(sandbox_id):
            return await self.connection.json(method, _path(sandbox_id, path), body)

    async def _once(self, method: str, sandbox_id: str, path: str, body: Any, seq: int | None) -> Any:
        """A request that must not run twice: named by its place, or remembered by the agent."""
        incarnation = await self._incarnation(sandbox_id) if seq is None else None
        with _about(sandbox_id):
            return await self.connection.json(method, _path(sandbox_id, path), body, once_for=incarnation)

    async def _incarnation(self, sandbox_id: str) -> str:
        """Of the agent that owns a sandbox now: asked first, so that it is known if the answer that follows is cut."""
        return self._read(dict[str, str], await self._json("GET", sandbox_id, "/incarnation")).get("incarnation", "")

    async def _items(self, method: str, sandbox_id: str, path: str, body: bytes) -> AsyncIterator[Chunk | Answer]:
        seen = {"stdout": 0, "stderr": 0}
        patience = Patience(self.connection.url, self.connection.patience_s)
        while True:
            skip = dict(seen)
            try:
                with _about(sandbox_id):
                    async with self.connection.frames(method, _path(sandbox_id, path), body) as frames:
                        async for frame in frames:
                            patience.renew()
                            if frame.type == "end":
                                return
                            if frame.type == "error":
                                raise unpack_error(self._item(answer_of, frame))
                            item = self._item(item_of, frame)
                            if isinstance(item, Answer):
                                yield item
                                return
                            fresh = _unseen(item, skip)
                            if fresh.data:
                                seen[item.stream] += len(fresh.data)
                                yield fresh
                problem = "the stream ended before its answer"
            except Cut as error:
                problem = str(error)
            await patience.pause(problem)


def _unseen(chunk: Chunk, skip: dict[str, int]) -> Chunk:
    """What of a chunk lies behind the bytes to skip, whose number goes down by what was skipped."""
    cut = min(skip[chunk.stream], len(chunk.data))
    skip[chunk.stream] -= cut
    return Chunk(chunk.stream, chunk.data[cut:]) if cut else chunk


def _path(sandbox_id: str, rest: str) -> str:
    if not _ID.fullmatch(sandbox_id):
        raise UnknownSandbox(f"a sandbox id is 12 hex digits, and not {shown(sandbox_id)}")
    return f"/sandboxes/{sandbox_id}{rest}"


@contextlib.contextmanager
def _about(sandbox_id: str) -> Iterator[None]:
    """Errors name the sandbox as the caller knows it: one that was rebuilt has another name on its host."""
    try:
        yield
    except SandboxDied as error:
        if error.sandbox_id == sandbox_id:
            raise
        raise SandboxDied(sandbox_id, error.reason, error.detail) from error
