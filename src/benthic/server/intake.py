"""What a request costs before the engine has heard of it: memory for its body, and time to parse and tokenise it.

Both are bounded here. All bodies together hold at most so many bytes. Long ones are worked on by a single thread of
their own, one after the other, so that a short request never waits behind megabytes. The threads are daemons: a text
that takes seconds does not hold up the end of the process either.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from starlette.types import Message, Receive

from benthic.server.errors import overloaded

LONG = 1 << 16
"""Characters and list items from which a body is long: some 0.1 s of tokenising."""
_SHORT_THREADS = 4

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Job = tuple[Future[Any], Callable[[], Any]]


class Intake:
    """The threads that read requests, and the bytes that bodies hold. `run` and `close` belong to the event loop.

    Args:
        max_bytes: of all bodies that have arrived, in whole or in part, and are not answered yet.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._short = Lane("benthic-intake", _SHORT_THREADS)
        self._long = Lane("benthic-intake-long", 1)

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies that are not answered yet."""
        return self._held_bytes

    @contextmanager
    def counted(self, receive: Receive) -> Iterator[Receive]:
        """Counts the body of one request for as long as the block lasts."""
        taken = 0

        async def receive_counted() -> Message:
            nonlocal taken
            message = await receive()
            num_bytes = len(message.get("body", b""))
            self.take(num_bytes)
            taken += num_bytes
            return message

        try:
            yield receive_counted
        finally:
            self.give_back(taken)

    def take(self, num_bytes: int) -> None:
        """Counts bytes that have arrived; whoever takes gives back.

        Raises:
            ApiError: 429, there is no room for them now.
        """
        if self._held_bytes and self._held_bytes + num_bytes > self._max_bytes:
            raise overloaded(
                f"the server holds {self._held_bytes} bytes of request bodies and {num_bytes} more have arrived; it "
                f"must be at most {self._max_bytes} in all; try again shortly"
            )
        self._held_bytes += num_bytes

    def give_back(self, num_bytes: int) -> None:
        """The request that these bytes belong to is over."""
        self._held_bytes -= num_bytes
        assert self._held_bytes >= 0, self._held_bytes

    async def run(self, body: object, work: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The result of `work`, which reads `body`, from a thread.

        A caller who stops waiting leaves work that has begun to end unheard, and takes work that has not away.
        """
        lane = self._long if is_long(body) else self._short
        return await lane.run(lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Ends the threads, each after what it is at."""
        self._short.close()
        self._long.close()


class Lane:
    """Some daemon threads, started when first needed, that work off one queue."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    async def run(self, work: Callable[[], _T]) -> _T:
        """The result of `work` from one of the threads."""
        if len(self._threads) < self._num_threads:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()
        future: Future[_T] = Future()
        self._jobs.put((future, work))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Lets every thread end; what waits is done before."""
        for _ in self._threads:
            self._jobs.put(None)
        self._threads.clear()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, work = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
                future.set_exception(error)
            del job, future, work  # a body of megabytes must not stay until the next one comes


def is_long(body: object) -> bool:
    """Whether a parsed body, or a raw one, is long; looks no further than it must."""
    left, waiting = LONG, [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str | bytes):
            left -= len(value)
        elif isinstance(value, dict | list):
            left -= len(value)
            if left < 0:
                return True
            waiting.extend(value.values() if isinstance(value, dict) else value)
        if left < 0:
            return True
    return False
