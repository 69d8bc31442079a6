"""A thread that owns an engine: requests and cancellations go in on one channel, events come out on another.

    worker = EngineWorker(engine)
    worker.start()
    worker.add(Request(...))            # from any thread, returns at once
    for event in worker.receive():      # blocks; one list a step
        ...                             # TokenEvent or FinalOutput, told apart by type, routed by request_id
    worker.close()

Results are returned from `receive`, never pushed through callbacks: an asynchronous server runs `receive` in a thread
of its own and routes the events. Every request that was added gets exactly one `FinalOutput`: also one that is
refused (finish_reason "error"), one that is cancelled, and all of them when a step fails or the worker closes.
"""

import logging
import queue
import threading
from dataclasses import dataclass
from typing import Protocol

from benthic.engine.request import Event, FinalOutput, FinishReason, Request
from benthic.engine.stats import EngineStats
from benthic.errors import CapacityError, RequestError

_CLOSED = "the engine was closed"

logger = logging.getLogger(__name__)


class StepEngine(Protocol):
    """What the worker needs of an engine (`benthic.engine.engine.Engine` has it)."""

    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None: ...
    def step(self) -> list[Event]: ...
    def has_work(self) -> bool: ...
    def fail_all(self, error: str) -> list[Event]: ...
    def stats(self) -> EngineStats: ...


@dataclass(frozen=True, slots=True)
class _Cancel:
    request_id: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class _Close:
    pass


class EngineWorker:
    """Runs an engine's steps in a daemon thread. All public methods may be called from any thread."""

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine
        self._inbox: queue.SimpleQueue[Request | _Cancel | _Close] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name="benthic-engine", daemon=True)
        self._stats = engine.stats()
        self._closing = False

    def start(self) -> None:
        """Starts the thread; once."""
        self._thread.start()

    def add(self, request: Request) -> None:
        """Hands in a request with a fresh id. A refusal arrives as a FinalOutput with finish_reason "error".

        Raises:
            RequestError: the worker is closed.
        """
        if self._closing:
            raise RequestError(f"request {request.request_id!r} came after close(); add requests before it")
        self._inbox.put(request)

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Ends a request within a step; nothing happens if it has ended already.

        `reason` is what its FinalOutput will say: a front door that found a stop string says "stop".
        """
        self._inbox.put(_Cancel(request_id, reason))

    def receive(self, timeout_s: float | None = None) -> list[Event]:
        """The events of one step, waiting for them; an empty list after `timeout_s` or once the worker has closed."""
        try:
            return self._outbox.get(timeout=timeout_s)
        except queue.Empty:
            return []

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def stats(self) -> EngineStats:
        """The engine's figures after its latest step."""
        return self._stats

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancels what is live, ends the thread and wakes one waiting `receive` with an empty list."""
        self._inbox.put(_Close())
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _main(self) -> None:
        while not self._closing:
            events = self._take_messages(wait=not self._engine.has_work())
            if not self._closing:
                events += self._step()
            self._stats = self._engine.stats()
            if events:
                self._outbox.put(events)
        self._outbox.put([])

    def _step(self) -> list[Event]:
        try:
            return self._engine.step() if self._engine.has_work() else []
        except Exception as error:  # noqa: BLE001 - the border: a failing step ends its requests, not the process
            logger.exception("an engine step failed; its requests end with an error")
            return self._engine.fail_all(f"{type(error).__name__}: {error}")

    def _take_messages(self, *, wait: bool) -> list[Event]:
        events: list[Event] = []
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return events
            wait = False
            match message:
                case Request():
                    events += self._admit(message)
                case _Cancel(request_id, reason):
                    self._engine.cancel(request_id, reason)
                case _Close():
                    self._closing = True
                    return events + self._engine.fail_all(_CLOSED) + self._refuse_rest()

    def _refuse_rest(self) -> list[Event]:
        events: list[Event] = []
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Request):
                events.append(refusal(message, _CLOSED))
        return events

    def _admit(self, request: Request) -> list[Event]:
        try:
            self._engine.add(request)
        except (RequestError, CapacityError) as error:
            return [refusal(request, str(error))]
        return []


def refusal(request: Request, error: str) -> FinalOutput:
    """The final output of a request that the engine did not take."""
    return FinalOutput(
        request_id=request.request_id,
        token_ids=(),
        logprobs=None,
        finish_reason="error",
        error=error,
        prompt_len=len(request.prompt_ids),
    )
