"""The outside of an engine that runs elsewhere: requests and calls go in from any thread, answers come out.

The law of the house is kept here: every request that was added gets exactly one FinalOutput, and every call's future
is settled exactly once, whatever becomes of the thread or process behind. `Answers` is the ledger of what is owed.
"""

import itertools
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import benthic.errors
from benthic.engine.call_checks import check_checksum, check_pause_mode, check_weight_version, read_weight_source
from benthic.engine.messages import (
    Call,
    Cancel,
    Check,
    Checksum,
    Command,
    Done,
    Dump,
    Failed,
    Flush,
    Pause,
    PauseMode,
    ReadWeight,
    ReleaseMemory,
    Report,
    Resume,
    StartProfile,
    StopProfile,
    TakeMemory,
    UpdateWeights,
)
from benthic.engine.profiling import ProfileWish
from benthic.engine.request import ErrorKind, Event, FinalOutput, FinishReason, Request, TokenEvent, TokenLogprobs
from benthic.engine.stats import EngineStats
from benthic.errors import BenthicError, CapacityError, EngineError, RequestError


@dataclass(frozen=True, slots=True)
class _Owed:
    """A request without its final output, and what it has been given so far."""

    arrived_s: float
    """On the clock `time.monotonic`."""
    timeout_s: float | None
    prompt_len: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None

    def take(self, event: TokenEvent) -> None:
        """Keeps what a token event brought."""
        self.token_ids.append(event.token_id)
        if self.logprobs is not None and event.logprobs is not None:
            self.logprobs.append(event.logprobs)

    def end(self, request_id: str, reason: FinishReason, error: str | None, kind: ErrorKind = "engine") -> FinalOutput:
        """The final output that its engine cannot give any more; `kind` of an error."""
        return FinalOutput(
            request_id=request_id,
            token_ids=tuple(self.token_ids),
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            finish_reason=reason,
            error=error,
            error_kind=kind if reason == "error" else None,
            prompt_len=self.prompt_len,
        )


class Late(NamedTuple):
    """An open request whose time is over."""

    request_id: str
    arrived_s: float
    overdue_s: float


class Answers:
    """Open requests and calls, and the events that nobody has received yet. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, _Owed] = {}
        self._leaving: set[str] = set()
        """Answered from here while their engine still had them: until it has ended them, their ids are in use."""
        self._calls: dict[int, Future[str]] = {}
        self._numbers = itertools.count()
        self._events: queue.SimpleQueue[list[Event]] = queue.SimpleQueue()
        self.stats = EngineStats()

    def expect(self, request: Request) -> None:
        """Opens a request.

        Raises:
            RequestError: one of that id is open.
        """
        with self._lock:
            if request.request_id in self._open or request.request_id in self._leaving:
                raise RequestError(f"request_id {request.request_id!r} is in use; each live request needs its own")
            logprobs: list[TokenLogprobs] | None = None if request.params.logprobs is None else []
            arrived_s = time.monotonic() - request.waited_s
            self._open[request.request_id] = _Owed(arrived_s, request.timeout_s, len(request.prompt_ids), [], logprobs)

    def expect_call(self) -> tuple[int, Future[str]]:
        """Opens a call: its number and its future."""
        future: Future[str] = Future()
        with self._lock:
            number = next(self._numbers)
            self._calls[number] = future
        return number, future

    @property
    def num_open(self) -> int:
        """Requests that are owed a final output."""
        return len(self._open)

    @property
    def num_calls(self) -> int:
        """Calls that are owed an answer."""
        return len(self._calls)

    def is_open(self, request_id: str) -> bool:
        """Whether a request is owed a final output."""
        return request_id in self._open

    def take(self, reply: Report | Done | Failed) -> None:
        """Settles what a reply answers. Events of requests that are not open are dropped."""
        match reply:
            case Report(events, stats):
                self.stats = stats
                self.deliver(events)
            case Done(number, value):
                if (future := self._close_call(number)) is not None:
                    future.set_result(value)
            case Failed(number, kind, message):
                if (future := self._close_call(number)) is not None:
                    future.set_exception(error_of(kind, message))

    def deliver(self, events: Sequence[Event]) -> None:
        """Passes events on to whoever receives."""
        with self._lock:
            passed = [event for event in events if event.request_id in self._open]
            if self._leaving:
                self._leaving -= {event.request_id for event in events if isinstance(event, FinalOutput)}
            for event in passed:
                if isinstance(event, FinalOutput):
                    del self._open[event.request_id]
                else:
                    self._open[event.request_id].take(event)
            if passed:  # inside the lock, so that no final output overtakes a token
                self._events.put(passed)

    def end(self, request_id: str, reason: FinishReason, error: str | None = None) -> None:
        """Answers one request from here, if it is open."""
        owed = self._open.get(request_id)
        if owed is not None:
            self.deliver([owed.end(request_id, reason, error)])

    def waited_s(self, request_id: str) -> float:
        """Seconds since an open request came."""
        return time.monotonic() - self._open[request_id].arrived_s

    def late(self, default_timeout_s: float | None) -> list[Late]:
        """Open requests whose time is over.

        Args:
            default_timeout_s: of those that name none; None: they have all the time.
        """
        now_s = time.monotonic()
        with self._lock:
            limits = [(name, owed.arrived_s, owed.timeout_s or default_timeout_s) for name, owed in self._open.items()]
        late = [Late(name, arrived_s, now_s - arrived_s - limit) for name, arrived_s, limit in limits if limit]
        return [entry for entry in late if entry.overdue_s > 0]

    def time_out(self, late: Late, why: str, *, is_held: bool) -> bool:
        """Answers a request whose time is over; returns whether it was still open.

        Args:
            why: it was not answered in time.
            is_held: its engine has it and will say its own end of it, which nobody hears any more.
        """
        with self._lock:
            owed = self._open.get(late.request_id)
            if owed is None or owed.arrived_s != late.arrived_s:
                return False
            del self._open[late.request_id]
            if is_held:
                self._leaving.add(late.request_id)
            waited_s, num_tokens = time.monotonic() - owed.arrived_s, len(owed.token_ids)
            error = f"the request timed out after {waited_s:.1f} s with {num_tokens} tokens generated: {why}"
            self._events.put([owed.end(late.request_id, "error", error, "timeout")])
            return True

    def fail(self, error: str) -> None:
        """Answers everything that is open with an error; the engine has forgotten all."""
        with self._lock:
            calls, self._calls = self._calls, {}
            self._leaving.clear()
            owed = list(self._open.items())
        self.deliver([entry.end(name, "error", error) for name, entry in owed])
        for future in calls.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineError(error))

    def wake(self) -> None:
        """Lets one waiting `receive` return with nothing."""
        self._events.put([])

    def receive(self, timeout_s: float | None) -> list[Event]:
        """The next events."""
        try:
            return self._events.get(timeout=timeout_s)
        except queue.Empty:
            return []

    def _close_call(self, number: int) -> Future[str] | None:
        with self._lock:
            future = self._calls.pop(number, None)
        # A caller may have given its future up; what the engine did stands.
        return future if future is not None and future.set_running_or_notify_cancel() else None


class EngineHandle(ABC):
    """What `EngineWorker` and `EngineProcess` have in common. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._answers = Answers()

    @abstractmethod
    def start(self) -> None:
        """Starts the engine's loop; once."""

    @abstractmethod
    def close(self, timeout_s: float = 30.0) -> None:
        """Answers what is live, ends the loop and wakes one waiting `receive` with an empty list."""

    @property
    @abstractmethod
    def state(self) -> str:
        """One of "new", "starting", "running", "needs weights", "stalled", "restarting", "failed" or "closed".

        "needs weights": those in force were lost; requests are refused until an update brings new ones.
        """

    @abstractmethod
    def _send(self, command: Command) -> None:
        """Hands a command on, in order; raises nothing and never waits."""

    @property
    def num_restarts(self) -> int:
        """How often the engine had to be started anew."""
        return 0

    @property
    def is_alive(self) -> bool:
        """Whether the engine answers now or may do so again: it is not new, closed or failed for good."""
        return self.state in ("starting", "running", "needs weights", "stalled", "restarting")

    @property
    def stats(self) -> EngineStats:
        """The engine's figures after its latest step."""
        return self._answers.stats

    def add(self, request: Request) -> None:
        """Hands in a request with a fresh id; returns at once. A refusal arrives as a FinalOutput with an error.

        Raises:
            RequestError: a request of that id is live, or the engine is closed.
            EngineError: the engine has failed for good.
        """
        state = self.state
        if state == "closed":
            raise RequestError(f"request {request.request_id!r} came after close(); add requests before it")
        if state == "failed":
            raise EngineError("the engine has failed and is not started again; its log has the reason")
        if not plain_ids(request.prompt_ids):
            raise RequestError("the prompt holds ids that are no plain integers; pass Python ints", param="prompt")
        self._answers.expect(request)
        self._send(request)

    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None:
        """Ends a request within a step; nothing happens if it has ended already.

        `reason` is what its FinalOutput will say: a front door that found a stop string says "stop".
        """
        self._send(Cancel(request_id, reason))

    def receive(self, timeout_s: float | None = None) -> list[Event]:
        """The events of one step, waiting for them; an empty list after `timeout_s` or once the engine has closed."""
        return self._answers.receive(timeout_s)

    def pause(self, mode: PauseMode = "keep") -> Future[str]:
        """Stops between two tokens; see `messages.Pause`. The future is done when nothing is computed any more.

        Raises:
            RequestError: there is no such mode.
        """
        check_pause_mode(mode)
        return self._call(lambda number: Pause(number, mode))

    def resume(self) -> Future[str]:
        """Goes on after a pause."""
        return self._call(Resume)

    def update_weights(
        self, source: str | Path | Mapping[str, Any], version: int | None = None, checksum: str | None = None
    ) -> Future[str]:
        """Takes other weights between two tokens; running requests go on under them, recomputed.

        Args:
            source: a checkpoint folder or a file of `write_weights`; for an engine of this process also a state dict,
                whose tensors must not change before the future is done.
            version: stamped on the tokens; None: one more than any so far. Versions go forward, and back only to the
                very weights that had that version.
            checksum: of `weights_checksum`; other weights are refused.

        Returns:
            A future of the version in force, or of an error: CheckpointError, RequestError (the version) or
            EngineError. Then the old weights stay, unless it is WeightsLostError. A process that replaces a dead one
            loads the same weights again: a file was held open for that, a folder must stay as it is.

        Raises:
            RequestError: an argument is of no use whatever the engine holds.
        """
        read = read_weight_source(source)
        check_weight_version(version)
        check_checksum(checksum)
        return self._call(lambda number: UpdateWeights(number, read, version, checksum))

    def flush(self) -> Future[str]:
        """Empties the prefix cache of all that no running request holds."""
        return self._call(Flush)

    def dump(self) -> Future[str]:
        """The engine's state as text."""
        return self._call(Dump)

    def check(self) -> Future[str]:
        """Asserts the engine's conservation laws between two steps; EngineError names a broken one."""
        return self._call(Check)

    def read_weight(self, name: str, max_values: int) -> Future[str]:
        """The first values of one tensor, as a JSON object of `weight_reading.WeightValues`."""
        return self._call(lambda number: ReadWeight(number, name, max_values))

    def checksum(self) -> Future[str]:
        """`weights_checksum` of the weights in force."""
        return self._call(Checksum)

    def release_memory(self) -> Future[str]:
        """Gives the cache's memory back, in a pause; a process that replaces a dead one has taken it again."""
        return self._call(ReleaseMemory)

    def take_memory(self) -> Future[str]:
        """Takes the cache's memory again."""
        return self._call(TakeMemory)

    def start_profile(self, wish: ProfileWish) -> Future[str]:
        """Records the next steps; the future's value is the path at which the trace will be.

        Returns:
            A future of the path, or of a RequestError: a recording runs already, or nothing can be written there.
        """
        return self._call(lambda number: StartProfile(number, wish))

    def stop_profile(self) -> Future[str]:
        """Ends a recording; the future's value is the path of its trace, or a RequestError: there is none."""
        return self._call(StopProfile)

    def _call(self, command: Callable[[int], Call]) -> Future[str]:
        number, future = self._answers.expect_call()
        self._send(command(number))
        return future


def refusal(request: Request, error: RequestError | CapacityError | EngineError) -> FinalOutput:
    """The final output of a request that the engine did not take."""
    kinds: tuple[tuple[type[BenthicError], ErrorKind], ...] = ((CapacityError, "capacity"), (EngineError, "engine"))
    return FinalOutput(
        request_id=request.request_id,
        token_ids=(),
        logprobs=None,
        finish_reason="error",
        error=str(error),
        error_kind=next((kind for types, kind in kinds if isinstance(error, types)), "request"),
        prompt_len=len(request.prompt_ids),
    )


def error_of(kind: str, message: str) -> BenthicError:
    """An error that crossed a process boundary as its class name and text."""
    found = getattr(benthic.errors, kind, None)
    if isinstance(found, type) and issubclass(found, BenthicError):
        return found(message)
    return EngineError(f"{kind}: {message}")


def plain_ids(ids: Sequence[int]) -> bool:
    """Whether these are Python's own integers and nothing that only behaves like them."""
    return set(map(type, ids)) <= {int}
