"""Sockets of a virtual machine's loopback, kept by its init and served by this process: `network.Loopback`.

Init says that somebody has come (`arrived`); a job then carries the connection, its input and output being the two
directions. What is not taken yet waits in the guest's kernel, and a side that does not read stops the other.
"""

import asyncio
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

from benthic.sandbox.errors import CallRefused, GuestLost, PathError
from benthic.sandbox.guest.connection import Connection, UnknownJob
from benthic.sandbox.guest.files import passing_id
from benthic.sandbox.guest.frames import Frame
from benthic.sandbox.guest.job_calls import JobCalls
from benthic.sandbox.guest.ports import PIECE_BYTES, carry

MAX_QUESTIONS = 32
LINGER_S = 5.0
"""For the guest's side of a connection, once the host's side is over."""
CLOSE_S = 1.0
NO_ROOM_S = 0.2
"""Until it is tried again to carry a connection when init has too many jobs."""


class GuestLoopback:
    """See `network.Loopback`. There is one for each client of an init."""

    max_connections = 32

    def __init__(self, connection: Connection, jobs: JobCalls) -> None:
        self._connection, self._jobs = connection, jobs
        self._arrived: dict[str, asyncio.Event] = {}
        self._answers: dict[str, Callable[[bytes], Awaitable[bytes | None]]] = {}
        self._room = asyncio.Semaphore(self.max_connections)
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_questions = 0
        connection.hear = self._hear

    async def listen(
        self, host: str, port: int, serve: Callable[[StreamReader, StreamWriter], "asyncio.Task[None] | None"]
    ) -> None:
        """See `network.Loopback`."""
        name = f"{host} {port}"
        self._arrived[name] = asyncio.Event()
        await self._ask("listen", host=host, port=port)
        self._do(self._take_all(name, serve))

    async def answer(self, host: str, port: int, answer: Callable[[bytes], Awaitable[bytes | None]]) -> None:
        """See `network.Loopback`."""
        self._answers[f"{host} {port}"] = answer
        await self._ask("listen", host=host, port=port, is_datagram=True)

    def stop(self) -> None:
        """Init goes on listening until another client comes; nobody is taken any more, and connections end."""
        self._connection.hear = None
        for task in list(self._tasks):
            task.cancel()

    async def close(self) -> None:
        """Stops, and waits for what init has to hear of it: not for long, since init may be gone or stand still."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_S)

    async def _ask(self, op: str, **fields: Any) -> None:
        try:
            await self._connection.request(op, **fields)
        except CallRefused as error:
            raise OSError(f"init cannot listen at {fields['host']} port {fields['port']}: {error}") from None

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _hear(self, frame: Frame) -> None:
        name = frame.header.get("arrived")
        if name in self._arrived:
            self._arrived[name].set()
        elif name in self._answers and self._num_questions < MAX_QUESTIONS:
            self._num_questions += 1
            self._do(self._reply(name, frame))

    async def _reply(self, name: str, question: Frame) -> None:
        try:
            reply = await self._answers[name](question.body)
            if reply is not None:
                place = {key: question.header.get(key) for key in ("address", "port")}
                await self._connection.request("reply", reply, listener=name, **place)
        except (GuestLost, CallRefused, OSError):
            pass  # it is asked again, or its sandbox is gone
        finally:
            self._num_questions -= 1

    async def _take_all(self, name: str, serve: Callable[..., "asyncio.Task[None] | None"]) -> None:
        arrived = self._arrived[name]
        with suppress(GuestLost):
            while await arrived.wait():
                arrived.clear()
                await self._room.acquire()
                job, is_taken = passing_id(), False
                fields = {"argv": ["carry"], "listener": name, "is_file_call": True, "holds_output": True}
                try:
                    await self._jobs.start(job, b"", input_ends=False, **fields)
                    is_taken = True
                    self._do(self._carry(job, serve))
                except CallRefused as refusal:
                    if "nobody waits" not in str(refusal):  # whoever has come is not told of again
                        await asyncio.sleep(NO_ROOM_S)
                        arrived.set()
                finally:
                    if not is_taken:
                        self._room.release()

    async def _carry(self, job: str, serve: Callable[..., "asyncio.Task[None] | None"]) -> None:
        ours, theirs = socket.socketpair()
        near = await asyncio.open_connection(sock=ours, limit=PIECE_BYTES)
        serving = serve(*await asyncio.open_connection(sock=theirs))
        carrying = asyncio.create_task(carry(self._jobs, job, *near))
        try:
            if serving is not None:
                await asyncio.wait({carrying, serving}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({carrying}, timeout=LINGER_S)
        finally:
            carrying.cancel()
            if serving is not None:
                serving.cancel()
            with suppress(GuestLost, UnknownJob, PathError, OSError, asyncio.CancelledError):
                await carrying
            self._room.release()
