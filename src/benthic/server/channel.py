"""The bridge between the event loop and the engine: requests and cancels go in, events come out.

One receiver thread blocks on the engine's handle and hands each step's events to the loop in one call; there they are
routed by request id to the `Generation` that waits for them. Laws: every opened sequence is closed exactly once; what
is delivered for a closed sequence is dropped; when the engine is gone for good, every open generation ends with an
error. While its process restarts, new requests wait for it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benthic.engine.handle import EngineHandle
from benthic.engine.request import Event, FinalOutput, Request
from benthic.errors import BenthicError, RequestError
from benthic.server.cache_watch import CacheWatch
from benthic.server.errors import ApiError, cut_off, engine_gone, needs_weights, overloaded, shutting_down
from benthic.server.metrics import Metrics
from benthic.server.tally import Tally

_POLL_S = 0.5
_CLOSE_S = 30.0

_log = logging.getLogger(__name__)


class Generation:
    """The sequences of one HTTP request, in the order of their choices.

    Used on the event loop only. `close` may be called at any time and cancels what still runs.

    Args:
        arrived_at: when the HTTP request came, on the monotonic clock; what a client waits for begins there. None: now.
    """

    def __init__(
        self, channel: "Channel", requests: Sequence[Request], metrics: Metrics, arrived_at: float | None = None
    ) -> None:
        self._channel = channel
        self._metrics = metrics
        self._requests = requests
        self._index = {request.request_id: index for index, request in enumerate(requests)}
        self._ids = {index: request_id for request_id, index in self._index.items()}
        self._events: list[tuple[int, Event]] = []
        self._failure: ApiError | None = None
        self._news: asyncio.Future[None] | None = None
        self._opened_at = time.monotonic()
        self._arrived_at = self._opened_at if arrived_at is None else arrived_at
        self.tally = Tally(requests, self._arrived_at)
        self._token_at: dict[int, float] = {}

    @property
    def is_done(self) -> bool:
        """Whether no sequence is open any more and nothing is left to read."""
        return not self._ids and not self._events and self._failure is None

    async def next_events(self, patience_s: float) -> list[tuple[int, Event]]:
        """What has happened since the last call, as (choice index, event); waits for something to happen.

        Returns:
            At least one event, or none after `patience_s` of silence.

        Raises:
            ApiError: the engine failed; all sequences of this generation are over.
        """
        if not self._events and self._failure is None:
            loop = asyncio.get_running_loop()
            self._news = loop.create_future()
            alarm = loop.call_later(patience_s, self._wake)
            try:
                await self._news
            finally:
                alarm.cancel()
                self._news = None
        if not self._events and self._failure is not None:
            raise self._failure
        events, self._events = self._events, []
        return events

    def stop(self, index: int) -> None:
        """End one sequence whose text is complete; its final output still comes."""
        if index in self._ids:
            self._channel.stop(self._ids[index])

    def close(self) -> None:
        """Cancel whatever is still open; called exactly when the answer ends, however it ends."""
        if self._ids:
            self._metrics.aborted.inc()
        for request_id in self._ids.values():
            self._channel.cancel(request_id)
        self._ids.clear()

    def deliver(self, event: Event) -> None:
        """Take one event of an open sequence; called by the channel."""
        index = self._index[event.request_id]
        self.tally.take(event)
        now = time.monotonic()
        if isinstance(event, FinalOutput):
            del self._ids[index]
            self._channel.forget(event.request_id)
            self._metrics.request_s.observe(now - self._arrived_at)
            self._channel.note_end(self._requests[index], event, opened_at=self._opened_at, now=now)
            if event.report is not None:
                self._metrics.queue_s.observe(event.report.queued_s)
        else:
            self._metrics.generated_tokens.inc()
            self._metrics.generation_rate.add(now)
            last = self._token_at.get(index)
            if last is None:
                self._metrics.first_token_s.observe(now - self._arrived_at)
            else:
                self._metrics.between_tokens_s.observe(now - last)
            self._token_at[index] = now
        self._events.append((index, event))
        self._wake()

    def fail(self, error: ApiError) -> None:
        """End all sequences with an error; called by the channel."""
        for request_id in self._ids.values():
            self._channel.forget(request_id)
        self._ids.clear()
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class Channel:
    """Opens generations on one engine, within a bound on open sequences."""

    def __init__(
        self, engine: EngineHandle, metrics: Metrics, *, max_open: int, cache_watch: CacheWatch | None = None
    ) -> None:
        self.engine = engine
        self.close_s = _CLOSE_S
        """How long a step that runs may take to end when the channel closes."""
        self._metrics = metrics
        self._cache_watch = cache_watch
        self._max_open = max_open
        self._owners: dict[str, Generation] = {}
        self._num_admitted = 0
        self._receiver: threading.Thread | None = None
        self._closing = threading.Event()
        self.is_draining = False
        metrics.watch("open_sequences", "Sequences opened and not yet ended", lambda: len(self._owners))
        metrics.watch("is_ready", "1 while requests are computed", lambda: self.readiness == "ready")
        metrics.watch_engine(lambda: engine.stats, lambda: engine.num_restarts)

    @property
    def num_open(self) -> int:
        """Sequences opened and not yet ended."""
        return len(self._owners)

    @property
    def state(self) -> str:
        """How it stands: "ok", "draining", or else the engine's state when that is another than running."""
        if self.is_draining:
            return "draining"
        state = self.engine.state
        return "ok" if state == "running" else state

    @property
    def readiness(self) -> str:
        """ "ready" where a request that comes now would be computed at once or queued; else why not.

        An engine has been warmed before it is "running", so where the state is "ok" nothing is left to compile. A full
        server is ready: it says 429 to what it cannot take, and a balancer that left it then would swing.
        """
        if self.state != "ok":
            return self.state
        return "paused" if self.engine.stats.is_paused else "ready"

    def start(self) -> None:
        """Start the engine, unless it runs, and route its events to the running loop."""
        if self.engine.state == "new":
            self.engine.start()
        loop = asyncio.get_running_loop()
        self._receiver = threading.Thread(target=self._receive, args=(loop,), name="benthic-receiver", daemon=True)
        self._receiver.start()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Lasts while a request that has been taken opens its sequences one after the other: a drain waits for it."""
        self._num_admitted += 1
        try:
            yield
        finally:
            self._num_admitted -= 1

    @property
    def is_idle(self) -> bool:
        """Whether no request that has been taken is without its answer from the engine."""
        return not self._owners and not self._num_admitted

    def check_room(self, num_sequences: int = 1, *, is_admitted: bool = False) -> None:
        """Refuse before any work is done; `is_admitted`: within `admitted`, where a drain is no reason any more.

        Raises:
            ApiError: 503 while shutting down, without weights or when the engine is gone, 429 when the
                server is full.
            RequestError: more sequences than can ever be open at once.
        """
        if self.is_draining and not is_admitted:
            raise shutting_down()
        if not self.engine.is_alive:
            raise engine_gone()
        if self.engine.state == "needs weights":
            raise needs_weights()
        if num_sequences > self._max_open:
            raise RequestError(
                f"n asks for {num_sequences} sequences in all; it must be at most {self._max_open}, "
                "for no more may be open at once",
                param="n",
            )
        if self.num_open + num_sequences > self._max_open:
            self._metrics.refused.inc()
            raise overloaded(
                f"the server is full: {self.num_open} sequences are open, {num_sequences} more were asked for, "
                f"and at most {self._max_open} may be open; try again shortly"
            )

    def open(
        self, requests: Sequence[Request], *, is_admitted: bool = False, arrived_at: float | None = None
    ) -> Generation:
        """Hand requests to the engine; `is_admitted` as for `check_room`, `arrived_at` as for `Generation`.

        Raises:
            ApiError, RequestError: as `check_room`.
        """
        self.check_room(len(requests), is_admitted=is_admitted)
        generation = Generation(self, requests, self._metrics, arrived_at)
        self._owners |= dict.fromkeys((request.request_id for request in requests), generation)
        try:
            for request in requests:
                self.engine.add(request)
        except BenthicError:
            generation.close()
            if not self.engine.is_alive:  # since just now
                raise engine_gone() from None
            raise
        return generation

    def stop(self, request_id: str) -> None:
        """End a sequence in the engine as complete."""
        self.engine.cancel(request_id, "stop")

    def cancel(self, request_id: str) -> None:
        """End a sequence in the engine and deliver nothing more for it."""
        self.forget(request_id)
        self.engine.cancel(request_id)

    def abort(self, request_id: str | None) -> int:
        """End the sequences of one HTTP request, or of all, in the engine; their clients are told. Returns how many."""
        chosen = [name for name in self._owners if request_id is None or name.rpartition("-")[0] == request_id]
        for name in chosen:
            self.engine.cancel(name)
        return len(chosen)

    def forget(self, request_id: str) -> None:
        """Deliver nothing more for this sequence."""
        del self._owners[request_id]

    def note_end(self, request: Request, final: FinalOutput, *, opened_at: float, now: float) -> None:
        """A sequence has ended in the engine: what did the prefix cache have for it?"""
        self._metrics.looked_up(request, final)
        if self._cache_watch is not None:
            self._cache_watch.ended(request, final, opened_at=opened_at, now=now)

    def fail_all(self, error: ApiError) -> None:
        """End every open generation with an error; what still runs in the engine is cancelled."""
        for request_id in self._owners:
            self.engine.cancel(request_id)
        for generation in set(self._owners.values()):
            generation.fail(error)

    async def close(self) -> None:
        """End the engine; whatever is open ends with an error."""
        await asyncio.to_thread(self.end_threads)
        self.fail_all(cut_off())

    def end_threads(self) -> None:
        """End the engine and the receiver; may be called twice, and after the loop has gone."""
        self._closing.set()
        self.engine.close(self.close_s)
        if self._receiver is not None:
            self._receiver.join(2 * _POLL_S)

    def _receive(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closing.is_set():
            events = self.engine.receive(_POLL_S)
            try:
                if events:
                    loop.call_soon_threadsafe(self._route, events)
                elif not self.engine.is_alive and not self._closing.is_set():
                    _log.critical("the engine is gone for good; its requests end with an error")
                    loop.call_soon_threadsafe(self.fail_all, engine_gone())
                    return
            except RuntimeError:  # the loop is closed: a forced end, nobody listens any more
                return

    def _route(self, events: list[Event]) -> None:
        for event in events:
            generation = self._owners.get(event.request_id)
            if generation is not None:
                generation.deliver(event)
