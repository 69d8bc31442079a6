"""Questions to init and their answers, over a stream that may be cut at any time.

Every request is safe to send twice (jobs have ids, input has offsets, signals are numbered), so after a cut all that
is unanswered is sent again, and readers of outputs go on from what they have. Laws: an id is answered at most once; a
reader never holds more than its window.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from benthic.errors import SandboxError
from benthic.sandbox.errors import CallRefused, GuestLost
from benthic.sandbox.guest.frames import Frame, FrameDecoder, FrameError, encode_frame, key_of
from benthic.sandbox.guest.records import Hello
from benthic.sandbox.records import Chunk

logger = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

PROTOCOL = 1
WINDOW = 192 << 10
"""Bytes of an output that init may send ahead of its reader."""
FIRST_GREETING_S, GREETING_S = 0.25, 2.0
"""After so long a greeting is sent again, at first and at last: an older session's half frame may have swallowed it."""
PAUSE_S = 0.02
NONSENSE_MAX = 5
"""Disturbed sessions in a row, without one answer, that make a guest a lost one."""


class UnknownJob(KeyError):
    """Init has no job of this id."""


@dataclass(slots=True)
class OutputReader:
    """One job's output on its way to whoever reads it. `offsets` are what has been given out."""

    job: str
    offsets: list[int]
    pieces: deque[tuple[int, bytes, int]] = field(default_factory=deque)
    """Stream, bytes, offset after them."""
    held_bytes: list[int] = field(default_factory=lambda: [0, 0])
    is_over: bool = False
    error: GuestLost | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, stream: int, data: bytes, offset: int) -> None:
        """Takes one frame's bytes; raises FrameError if init was not allowed to send them."""
        self.held_bytes[stream] += len(data)
        if self.held_bytes[stream] > WINDOW or not data or offset < self.offsets[stream]:
            raise FrameError(f"output of job {self.job} that was not asked for")
        self.pieces.append((stream, data, offset + len(data)))
        self.arrived.set()

    def take(self) -> Chunk:
        """The oldest piece."""
        stream, data, self.offsets[stream] = self.pieces.popleft()
        self.held_bytes[stream] -= len(data)
        return Chunk("stderr" if stream else "stdout", data)

    def restart(self) -> None:
        """After a cut: what was not given out will come again."""
        self.pieces.clear()
        self.held_bytes[:] = [0, 0]

    def end(self, error: GuestLost | None = None) -> None:
        """Nothing more will come."""
        self.is_over, self.error = True, error
        self.arrived.set()

    def follow(self, *, is_fresh: bool) -> Frame:
        """The message that lets init send up to a window more than was given out."""
        stdout, stderr = self.offsets
        fields = {"job": self.job, "stdout": stdout, "stderr": stderr, "window": WINDOW, "is_fresh": is_fresh}
        return Frame({"op": "follow", **fields})


class Connection:
    """A stream to init that mends itself."""

    def __init__(self, connect: Connect, timeout_s: float) -> None:
        self._connect, self._timeout_s = connect, timeout_s
        self._client, self._next_id = secrets.token_hex(16), 1
        self._pending: dict[int, tuple[Frame, asyncio.Future[Frame]]] = {}
        self._readers: dict[str, OutputReader] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._wanted = asyncio.Event()
        self._key = 0
        self._nonsense, self._deadline_s = 0, 0.0
        self._lost: GuestLost | None = None
        self._task: asyncio.Task[None] | None = None
        self._greeted: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._greeted.add_done_callback(_mark_seen)
        self.hello: Hello | None = None
        self.hear: Callable[[Frame], None] | None = None
        """Takes what init says unasked: that somebody has come to a socket that it keeps."""

    async def open(self) -> Hello:
        """Connects; raises GuestLost if no greeting comes in time."""
        self._task = asyncio.create_task(self._keep_up(), name="sandbox guest")
        return await asyncio.shield(self._greeted)

    async def close(self) -> None:
        """Leaves init; whoever still waits gets GuestLost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._lose(GuestLost("the client was closed"))

    async def request(self, op: str, body: bytes = b"", **fields: Any) -> Frame:
        """Asks and waits for the answer, across cuts.

        Raises:
            GuestLost: there is no init any more.
            UnknownJob, CallRefused: as init says.
        """
        return await self.post(op, body, **fields)

    def post(self, op: str, body: bytes = b"", **fields: Any) -> asyncio.Future[Frame]:
        """Asks; the answer comes with the future. Requests arrive in the order of these calls."""
        if self._lost is not None:
            raise self._lost
        request_id, self._next_id = self._next_id, self._next_id + 1
        frame = Frame({"op": op, "id": request_id, **fields}, body)
        encoded = encode_frame(frame, self._key)  # also while cut off: what could never be sent is refused here
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._pending[request_id] = (frame, future)
        future.add_done_callback(lambda _: self._pending.pop(request_id, None))
        future.add_done_callback(_mark_seen)
        if self._writer is not None:
            self._writer.write(encoded)
        self._wanted.set()
        return future

    def read_output(self, job: str, stdout: int, stderr: int) -> OutputReader:
        """Begins to follow a job; an older reader of it is over."""
        if self._lost is not None:
            raise self._lost
        if older := self._readers.pop(job, None):
            older.end()
        reader = self._readers[job] = OutputReader(job, [stdout, stderr])
        self._send(reader.follow(is_fresh=True))
        self._wanted.set()
        return reader

    def allow_more(self, reader: OutputReader) -> None:
        """Tells init how far a reader is."""
        if self._readers.get(reader.job) is reader:
            self._send(reader.follow(is_fresh=False))

    def stop_reading(self, reader: OutputReader) -> None:
        """The command need not wait for this reader any more."""
        if self._readers.get(reader.job) is reader:
            del self._readers[reader.job]
            if self._lost is None:
                self.post("unfollow", job=reader.job)

    def _send(self, frame: Frame) -> None:
        if self._writer is not None:
            self._writer.write(encode_frame(frame, self._key))

    async def _keep_up(self) -> None:
        try:
            while True:
                self._deadline_s = asyncio.get_running_loop().time() + self._timeout_s
                while not await self._session():
                    await asyncio.sleep(PAUSE_S)
                await self._has_questions()
        except GuestLost as error:
            self._lose(error)

    async def _has_questions(self) -> None:
        """Returns once there is a reason to connect again: a newer client may be at work."""
        if not self._pending and not self._readers:
            self._wanted.clear()
            await self._wanted.wait()

    async def _session(self) -> bool:
        """From a new stream to its end; whether init greeted. Raises GuestLost when there is no hope of another one."""
        reader, writer = await self._new_stream()
        is_greeted = False
        try:
            decoder = await self._greet(reader, writer)
            is_greeted = True
            self._writer = writer
            self._resume()
            await self._read(reader, decoder)
        except FrameError as error:
            self._nonsense += 1
            logger.info("init of a sandbox makes no sense: %s", error)
            if self._nonsense >= NONSENSE_MAX:
                raise GuestLost(f"init inside makes no sense: {error}") from None
        except (OSError, asyncio.IncompleteReadError):
            pass  # cut: the next session goes on
        finally:
            self._writer = None
            writer.close()
        return is_greeted

    def _check_time(self, what: object) -> None:
        if asyncio.get_running_loop().time() >= self._deadline_s:
            raise GuestLost(f"init did not greet within {self._timeout_s} s: {what}")

    async def _new_stream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while True:
            try:
                async with asyncio.timeout_at(self._deadline_s):
                    return await self._connect()
            except (OSError, TimeoutError) as error:
                self._check_time(repr(error))
                await asyncio.sleep(PAUSE_S)
            except SandboxError as error:
                raise GuestLost(f"no stream to init: {error}") from error

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> FrameDecoder:
        decoder = FrameDecoder()
        nonce = secrets.token_hex(16)
        hello = encode_frame(Frame({"op": "hello", "nonce": nonce, "client": self._client, "protocol": PROTOCOL}), 0)
        writer.write(hello)
        patience_s = FIRST_GREETING_S
        while True:
            while (frame := decoder.take()) is not None:
                if frame.header.get("hello") == nonce:
                    decoder.key, decoder.is_greeted, self._key = key_of(nonce), True, key_of(nonce)
                    self._welcome(frame.header)
                    return decoder
            self._check_time("it says nothing")
            try:
                async with asyncio.timeout(patience_s):
                    data = await reader.read(1 << 16)
            except TimeoutError:
                writer.write(hello)
                patience_s = min(GREETING_S, 2 * patience_s)
                continue
            if not data:
                self._check_time("it hung up")
                raise ConnectionResetError("init hung up before its greeting")
            decoder.feed(data)

    def _welcome(self, header: dict[str, Any]) -> None:
        boot_id, protocol = header.get("boot_id"), header.get("protocol")
        if protocol != PROTOCOL or not isinstance(boot_id, str):
            raise GuestLost(f"init speaks protocol {protocol!r}; this client speaks {PROTOCOL}")
        pid = header.get("pid")
        hello = Hello(
            boot_id=boot_id[:64],
            is_configured=header.get("is_configured") == 1,
            pid=pid if isinstance(pid, int) else 0,
        )
        self.hello = hello
        if not self._greeted.done():
            self._greeted.set_result(hello)

    def _resume(self) -> None:
        """Asks again what was not answered, and lets every reader go on.

        Readers come after the jobs they read and before whoever waits for an end: that is answered after the output.
        """
        unanswered = [frame for _, (frame, _) in sorted(self._pending.items())]
        for frame in unanswered:
            if frame.header["op"] == "start":
                self._send(frame)
        for reader in self._readers.values():
            reader.restart()
            self._send(reader.follow(is_fresh=True))
        for frame in unanswered:
            if frame.header["op"] != "start":
                self._send(frame)

    async def _read(self, reader: asyncio.StreamReader, decoder: FrameDecoder) -> None:
        while True:
            while (frame := decoder.take()) is not None:
                self._dispatch(frame)
            data = await reader.read(1 << 16)
            if not data:
                return
            decoder.feed(data)
            await asyncio.sleep(0)  # a flood must not keep everybody else from running

    def _dispatch(self, frame: Frame) -> None:
        header = frame.header
        if "output" in header:
            stream, offset = header.get("stream"), header.get("offset")
            if stream not in (0, 1) or not isinstance(offset, int):
                raise FrameError(f"output without a place: {header}")
            if reader := self._readers.get(str(header["output"])):
                reader.put(stream, frame.body, offset)
        elif "arrived" in header:
            if self.hear is not None and isinstance(header["arrived"], str):
                self.hear(frame)
        elif "noise" in header:
            raise FrameError("init has met bytes that are no frame")
        elif isinstance(header.get("id"), int):
            self._nonsense = 0
            _, future = self._pending.pop(header["id"], (None, None))
            if future is not None and not future.done():
                _answer(future, frame)

    def _lose(self, error: GuestLost) -> None:
        self._lost = self._lost or error
        if not self._greeted.done():
            self._greeted.set_exception(error)
        for _, future in list(self._pending.values()):
            if not future.done():
                future.set_exception(error)
        for reader in self._readers.values():
            reader.end(error)
        self._readers.clear()


def _mark_seen(future: asyncio.Future[Any]) -> None:
    """Not every answer has somebody left who waits for it."""
    if not future.cancelled():
        future.exception()


def _answer(future: asyncio.Future[Frame], frame: Frame) -> None:
    kind, text = frame.header.get("error"), str(frame.header.get("text", ""))[:400]
    if kind is None:
        future.set_result(frame)
    elif kind == "unknown":
        future.set_exception(UnknownJob(text))
    else:
        future.set_exception(CallRefused(text))
