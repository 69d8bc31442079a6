"""A service in this process without HTTP: the same bodies, the same path, the same replies as over the wire.

The command line's `chat`, `generate` and `eval` talk to it. An event loop runs in a thread of its own.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from benthic.server.errors import ApiError
from benthic.server.protocols import open_answer
from benthic.server.service import Service

_T = TypeVar("_T")
Body = Mapping[str, Any]


class LocalService:
    """Answers chat bodies from synchronous code; a context manager."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="benthic-local", daemon=True)
        self._thread.start()
        self._wait(self._start())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engine and the loop."""
        self._wait(self.service.channel.close())
        self.service.intake.close()
        self.service.grammars.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def ask(
        self, bodies: Iterable[Body], *, at_once: int, done: Callable[[], None] | None = None
    ) -> list[dict[str, Any]]:
        """The replies to many chat bodies, in their order, `at_once` at a time.

        Raises:
            RequestError: a body is wrong.
        """
        return self._wait(self._ask_all(list(bodies), at_once, done))

    def stream(self, body: Body) -> Generator[dict[str, Any], None, None]:
        """The chunks of one chat reply as they come. Closing the generator cancels the reply.

        Raises:
            RequestError: the body is wrong.
            ApiError: the engine failed.
        """
        chunks: SimpleQueue[dict[str, Any] | Exception | None] = SimpleQueue()
        future = asyncio.run_coroutine_threadsafe(self._stream({**body, "stream": True}, chunks), self._loop)
        try:
            while (chunk := chunks.get()) is not None:
                if isinstance(chunk, Exception):
                    raise chunk
                yield chunk
        finally:
            future.cancel()

    async def _start(self) -> None:
        self.service.channel.start()

    async def _ask_all(self, bodies: list[Body], at_once: int, done: Callable[[], None] | None) -> list[dict[str, Any]]:
        room = asyncio.Semaphore(at_once)

        async def ask_one(body: Body) -> dict[str, Any]:
            async with room:
                reply = await self._ask(body)
            if done is not None:
                done()
            return reply

        return list(await asyncio.gather(*map(ask_one, bodies)))

    async def _ask(self, body: Body) -> dict[str, Any]:
        answer = await open_answer(self.service, "chat", body)
        try:
            return await answer.whole()
        finally:
            answer.close()

    async def _stream(self, body: Body, chunks: "SimpleQueue[dict[str, Any] | Exception | None]") -> None:
        try:
            answer = await open_answer(self.service, "chat", body)
            try:
                async for frame in answer.frames():
                    for chunk in _chunks(frame):
                        chunks.put(chunk)
            finally:
                answer.close()
            chunks.put(None)
        except Exception as error:  # noqa: BLE001  it belongs to the thread that reads the chunks
            chunks.put(error)

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def _chunks(frames: str) -> Iterator[dict[str, Any]]:
    for frame in frames.split("\n\n"):
        data = frame.removeprefix("data: ")
        if frame and data != "[DONE]":
            chunk = json.loads(data)
            if "error" in chunk:
                raise ApiError(500, chunk["error"]["message"])
            yield chunk
