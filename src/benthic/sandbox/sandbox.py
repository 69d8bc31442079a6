"""A handle on one sandbox, whatever its kind and wherever it runs.

    async with Sandbox.create(kind="container") as sandbox:
        result = await sandbox.exec("make test", timeout_s=120)
        await sandbox.write("/work/notes", b"done")

Each call takes the next place of the sandbox's trajectory. A program that is run again with `resume=` gets from the log
what it got before, until it is past the log; then its calls run. Calls may run side by side, but only a program that
awaits one before it sends the next is sure to be replayed exactly.
"""

import asyncio
import contextlib
import signal as signals
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benthic.errors import BenthicError, RequestError, SandboxError
from benthic.sandbox.archives import pack, unpack
from benthic.sandbox.calling import (
    CommandLike,
    as_command,
    call_result_of,
    command_request,
    function_request,
    result_of,
    value_of,
)
from benthic.sandbox.errors import OutputLimit, SandboxDied, TrajectoryDiverged
from benthic.sandbox.host import Answer, Host, Request, SandboxInfo
from benthic.sandbox.opening import Opening, host_or_own, require_same
from benthic.sandbox.process import Process
from benthic.sandbox.records import (
    CallResult,
    Checkpoint,
    Chunk,
    FileStat,
    Kind,
    Limits,
    Network,
    Reason,
    Result,
    SandboxSpec,
    SnapshotRef,
    State,
)
from benthic.sandbox.session import Session
from benthic.sandbox.wire import decode


class Sandbox:
    """See the module's docstring. Methods raise the errors of `errors.py`; `is_infra` says whom to blame."""

    def __init__(
        self, host: Host, info: SandboxInfo, *, next_seq: int = 0, branches: bool = False, owned: Any = None
    ) -> None:
        """Use `create` or `attach`.

        Args:
            owned: a host of this handle alone, which is let go of with it.
        """
        self.host = host
        self.id = info.id
        self.spec = info.spec
        self.next_seq = next_seq
        """The place of the next call."""
        self._branches = branches
        self._owned = owned
        self._abandoned: set[asyncio.Task[None]] = set()

    @classmethod
    def create(
        cls,
        *,
        kind: Kind = "function",
        image: str | None = None,
        layers: Sequence[str] = (),
        limits: Limits | None = None,
        network: Network | None = None,
        env: dict[str, str] | None = None,
        cwd: str = "/work",
        driver: str | None = None,
        ttl_s: float | None = 3600.0,
        idle_ttl_s: float | None = None,
        snapshot_every: int | None = None,
        host: Host | None = None,
        key: str | None = None,
        resume: str | Checkpoint | None = None,
        on_divergence: Literal["raise", "branch"] = "raise",
        rebuilds: bool = False,
    ) -> "Opening[Sandbox]":
        """A new sandbox, or with `resume` one that is there; await it, or enter it. Fields are those of `SandboxSpec`.

        Args:
            host: whose it is; None takes this machine, and leaves nothing running but the sandbox itself.
            key: a key that was used before gives the sandbox that was made for it.
            resume: the id of a sandbox, whose program runs again from its first call; or a checkpoint, behind which
                the program goes on. The spec is then that of the sandbox.
            on_divergence: `branch` goes on in a new sandbox, which has the calls before the differing one in common
                with the old; `id` is then the new one's.
            rebuilds: one that crashed or lost its machine is made again from its log, instead of SandboxDied.

        Raises:
            StartFailed, NotSupported: it did not come up.
            TrajectoryDiverged: the log is not the one that a checkpoint was made in.
        """
        spec = SandboxSpec(
            kind=kind,
            image=image,
            layers=tuple(layers),
            limits=limits or Limits(),
            network=network or Network(),
            env=tuple((env or {}).items()),
            cwd=cwd,
            driver=driver,
            ttl_s=ttl_s,
            idle_ttl_s=idle_ttl_s,
            snapshot_every=snapshot_every,
        )
        if resume is None:
            return cls.create_from(spec, host=host, key=key)
        return cls.resume_from(resume, host=host, branches=on_divergence == "branch", rebuilds=rebuilds)

    @classmethod
    def create_from(
        cls,
        spec: SandboxSpec,
        *,
        host: Host | None = None,
        key: str | None = None,
        snapshot: SnapshotRef | None = None,
    ) -> "Opening[Sandbox]":
        """A new sandbox of a spec, from its image or from a snapshot."""

        async def opened() -> Sandbox:
            async with host_or_own(host) as (whose, owned):
                info = await whose.create(spec, key=key, snapshot=snapshot)
                return cls(whose, info, owned=owned)

        return Opening(opened)

    @classmethod
    def resume_from(
        cls, place: str | Checkpoint, *, host: Host | None = None, branches: bool = False, rebuilds: bool = False
    ) -> "Opening[Sandbox]":
        """See `create`, with `resume`."""

        async def opened() -> Sandbox:
            async with host_or_own(host) as (whose, owned):
                checkpoint = Checkpoint(place, -1, "") if isinstance(place, str) else place
                info = await whose.info(checkpoint.sandbox_id)
                if info.state is State.DEAD and rebuilds and info.reason in (Reason.CRASHED, Reason.HOST_LOST):
                    done = await whose.rebuild(info.id)
                    if done.diverged_at is not None:
                        raise TrajectoryDiverged(f"{info.id} could not be made as it was: {done.detail}")
                elif info.state is State.PAUSED:
                    await whose.resume(info.id)
                await require_same(whose, checkpoint)
                return cls(whose, info, next_seq=checkpoint.last_seq + 1, branches=branches, owned=owned)

        return Opening(opened)

    @classmethod
    def attach(cls, sandbox_id: str, *, host: Host | None = None) -> "Opening[Sandbox]":
        """A sandbox that is there, for calls behind the last one of its log."""

        async def opened() -> Sandbox:
            async with host_or_own(host) as (whose, owned):
                info = await whose.info(sandbox_id)
                if info.state is State.DEAD:
                    raise SandboxDied(info.id, info.reason or Reason.CRASHED, info.detail)
                return cls(whose, info, next_seq=info.next_seq, owned=owned)

        return Opening(opened)

    def __repr__(self) -> str:
        return f"<{self.kind} sandbox {self.id}, call {self.next_seq} is next>"

    @property
    def kind(self) -> Kind:
        """Its substrate."""
        return self.spec.kind

    async def info(self) -> SandboxInfo:
        """What its host knows of it."""
        return await self.host.info(self.id)

    async def checkpoint(self) -> Checkpoint:
        """This place in the trajectory, with its proof: what a rollout keeps beside its tokens."""
        return await self.host.checkpoint(self.id, self.next_seq - 1)

    async def exec(
        self,
        command: CommandLike,
        *,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        stdin: bytes | str = b"",
        timeout_s: float | None = 60.0,
        quiet_timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        user: str | None = None,
        is_idempotent: bool = False,
        strict_output: bool = False,
    ) -> Result:
        """Runs a command to its end; a code other than 0 is no error. Fields are those of `Command`.

        Who stops waiting ends the command.

        Args:
            command: a `Command` is taken as it is, and the other arguments are not looked at.
            strict_output: dropped output raises OutputLimit.

        Raises:
            CommandTimeout: with what it had printed; everything it started is gone, the sandbox goes on.
            SandboxDied: with the reason.
        """
        request = command_request(
            as_command(
                command,
                cwd=cwd,
                env=env,
                stdin=stdin,
                timeout_s=timeout_s,
                quiet_timeout_s=quiet_timeout_s,
                max_output_bytes=max_output_bytes,
                user=user,
                is_idempotent=is_idempotent,
            )
        )
        result = result_of(await self.call_logged(request))
        if strict_output and result.is_truncated:
            dropped = result.dropped_stdout_bytes + result.dropped_stderr_bytes
            raise OutputLimit(f"{dropped} bytes of output were dropped; allow more with max_output_bytes", result)
        return result

    async def stream(self, command: CommandLike, **options: Any) -> AsyncGenerator[Chunk | Result, None]:
        """Runs a command and gives its output as it comes, then its result. A slow reader slows the command.

        Args:
            options: those of `exec`.

        Raises:
            CommandTimeout: after the output.
        """
        request = command_request(as_command(command, **options))
        seq = self._take()
        ended = False
        try:
            async with contextlib.aclosing(self.host.stream(self.id, seq, request)) as items:  # type: ignore[type-var]
                async for item in items:
                    if isinstance(item, Chunk):
                        yield item
                    else:
                        ended = True
                        yield result_of(replace(item, seq=seq))
        finally:
            if not ended:
                self._abandon(seq, request)

    async def spawn(
        self,
        command: CommandLike,
        *,
        keeps_input: bool = False,
        terminal: tuple[int, int] | None = None,
        timeout_s: float | None = None,
        **options: Any,
    ) -> Process:
        """Starts a command in the background.

        Args:
            keeps_input: stdin stays open for `Process.feed`.
            terminal: rows and columns of a pseudo-terminal to run it on.
            options: further ones of `exec`.
        """
        request = command_request(as_command(command, timeout_s=timeout_s, **options))
        more = {"keeps_input": keeps_input or terminal is not None, "terminal": list(terminal) if terminal else None}
        answer = await self.call_logged(replace(request, verb="spawn", arguments={**request.arguments, **more}))
        value_of(answer)
        return Process(self, answer.seq)

    def process(self, seq: int) -> Process:
        """A command that was spawned at a place, by this program or another one."""
        return Process(self, seq)

    def session(self, name: str = "main", *, shell: str = "sh") -> Session:
        """A shell whose folder and exported variables are kept from one command to the next; see `session.py`."""
        return Session(self.exec, name, shell=shell)

    async def call(
        self, function: Callable[..., Any] | str, *args: Any, timeout_s: float | None = 10.0, **kwargs: Any
    ) -> Any:
        """Calls a Python function inside, as if nothing had run there before; arguments and value are JSON.

        Args:
            function: one that needs nothing but its own source, or the source itself, which defines `main`.

        Raises:
            SandboxError: it raised, or came to no value; `call_result` tells the two apart.
        """
        result = await self.call_result(function, *args, timeout_s=timeout_s, **kwargs)
        if result.error is not None:
            raise SandboxError(f"the call came to no value: {result.error}")
        return result.value

    async def call_result(
        self, function: Callable[..., Any] | str, *args: Any, timeout_s: float | None = 10.0, **kwargs: Any
    ) -> CallResult:
        """The same, with output, usage and the reason of its end."""
        return call_result_of(await self.call_logged(function_request(function, args, kwargs, timeout_s)))

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None, user: str | None = None) -> bytes:
        """A regular file's bytes.

        Raises:
            PathError: it is not there, is no regular file, or is too large.
        """
        answer = await self._files("read", path=path, offset=offset, limit=limit, user=user)
        return answer.data

    async def write(
        self,
        path: str,
        data: bytes | str,
        *,
        mode: int | None = None,
        atomic: bool = True,
        offset: int | None = None,
        user: str | None = None,
    ) -> None:
        """Replaces a file's content, or with `offset` some bytes of it; missing folders are made."""
        content = data.encode() if isinstance(data, str) else data
        await self._files("write", content, path=path, mode=mode, atomic=atomic, offset=offset, user=user)

    async def list(self, path: str, *, user: str | None = None) -> list[FileStat]:
        """The entries of a folder, sorted by path."""
        answer = await self._files("list", path=path, user=user)
        return [decode(FileStat, entry) for entry in answer.value["entries"]]

    async def stat(self, path: str, *, user: str | None = None) -> FileStat:
        """One entry; a link is not followed."""
        return decode(FileStat, (await self._files("stat", path=path, user=user)).value)

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Removes a file, a link, an empty folder, or with `recursive` a folder and all below."""
        await self._files("remove", path=path, recursive=recursive, user=user)

    async def upload(self, source: bytes | Path | str, folder: str, *, user: str | None = None) -> None:
        """Unpacks an archive into a folder inside.

        Args:
            source: a tar archive's bytes, or a file or folder of this machine, which arrives under its own name.
        """
        archive = source if isinstance(source, bytes) else await asyncio.to_thread(pack, Path(source))
        await self._files("upload", archive, folder=folder, user=user)

    async def download(self, path: str, target: Path | str | None = None, *, user: str | None = None) -> bytes:
        """A file or folder of the sandbox as a tar archive.

        Args:
            target: a folder of this machine to unpack it into; entries that would leave it are refused.
        """
        archive = (await self._files("download", path=path, user=user)).data
        if target is not None:
            await asyncio.to_thread(unpack, archive, Path(target), self.spec.limits)
        return archive

    async def expose(self, port: int) -> str:
        """The path of a unix socket on the sandbox's host that leads to a TCP port on its loopback."""
        if not 0 < port < 1 << 16:
            raise ValueError(f"port must be from 1 to 65535, and is {port}")
        return await self.host.expose(self.id, port)

    async def snapshot(self, name: str | None = None) -> SnapshotRef:
        """Keeps its present state; `create_from` takes it."""
        return await self._placed(lambda seq: self.host.snapshot(self.id, name, seq=seq))

    async def fork(self, count: int = 1) -> Sequence["Sandbox"]:
        """New sandboxes that start from its present state, each with a trajectory of its own."""
        infos = await self._placed(lambda seq: self.host.fork(self.id, count, seq=seq))
        return [type(self)(self.host, info) for info in infos]

    async def pause(self) -> None:
        """Freezes it; its clocks of life stop."""
        await self.host.pause(self.id)

    async def resume(self) -> None:
        """Lets it go on."""
        await self.host.resume(self.id)

    async def close(self) -> None:
        """Ends it and removes everything but its log."""
        try:
            await self.host.close(self.id)
        finally:
            await self.detach()

    async def detach(self) -> None:
        """Lets go of it; it lives on."""
        await asyncio.gather(*self._abandoned, return_exceptions=True)
        if self._owned is not None:
            await self._owned.leave()
            self._owned = None

    async def call_logged(self, request: Request) -> Answer:
        """One call at the next place, whatever its verb.

        Raises:
            SandboxError: there is no answer; the place is free, or open, for the same call.
        """
        while True:
            seq = self._take()
            try:
                answer = await self.host.call(self.id, seq, request)
                return replace(answer, seq=seq)
            except asyncio.CancelledError:
                self._abandon(seq, request)
                raise
            except TrajectoryDiverged:
                self._give_back(seq)
                if not self._branches:
                    raise
                self.id = (await self.host.branch(self.id, seq)).id
            except BaseException:
                self._give_back(seq)
                raise

    async def _files(
        self,
        verb: Literal["read", "write", "list", "stat", "remove", "upload", "download"],
        data: bytes = b"",
        **facts: Any,
    ) -> Answer:
        answer = await self.call_logged(Request(verb=verb, arguments=facts, data=data))
        value_of(answer)
        return answer

    async def _placed(self, call: Callable[[int], Awaitable[Any]]) -> Any:
        seq = self._take()
        try:
            return await call(seq)
        except (TrajectoryDiverged, RequestError):
            self._give_back(seq)
            raise
        except BenthicError as error:
            if getattr(error, "is_infra", False) or not await self._is_logged(seq):
                self._give_back(seq)
            raise
        except BaseException:
            self._give_back(seq)
            raise

    async def _is_logged(self, seq: int) -> bool:
        """Whether an error is the answer that a place has for ever, such as NotSupported."""
        try:
            return (await self.host.info(self.id)).next_seq > seq
        except BenthicError:
            return False

    def _take(self) -> int:
        seq = self.next_seq
        self.next_seq += 1
        return seq

    def _give_back(self, seq: int) -> None:
        """The place of a call without an answer: it is for the same call again."""
        if self.next_seq == seq + 1:
            self.next_seq = seq

    def _abandon(self, seq: int, request: Request) -> None:
        """Nobody waits for a command any more: ends it, so that its place has an end."""

        async def ended() -> None:
            call = asyncio.ensure_future(self.host.call(self.id, seq, request))
            while not call.done():
                with contextlib.suppress(SandboxError):
                    await self.host.signal(self.id, seq, signals.SIGKILL)
                await asyncio.wait([call], timeout=0.05)
            call.exception()

        task = asyncio.create_task(ended())
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)
