"""The loop around an engine: commands in, steps, replies out. The same loop runs in a thread and in a child process.

Calls are carried out between steps, at a drained boundary: no pass is in flight while an engine pauses, takes weights
or is checked. A step that fails ends its requests, not the loop.
"""

import logging
import queue
import time
from collections.abc import Callable
from typing import Protocol

from benthic.engine.handle import refusal
from benthic.engine.messages import (
    Call,
    Cancel,
    Check,
    Close,
    Command,
    Done,
    Dump,
    Failed,
    Flush,
    Pause,
    PauseMode,
    Reply,
    Report,
    Resume,
    UpdateWeights,
)
from benthic.engine.request import Event, FinishReason, Request
from benthic.engine.stats import EngineStats
from benthic.engine.watchdog import Heartbeat
from benthic.errors import BenthicError, CapacityError, RequestError

CLOSED = "the engine was closed"
REPORT_EVERY_S = 0.1
"""Figures are reported at least this often while steps bring no events, as in a long prefill."""

logger = logging.getLogger(__name__)


class StepEngine(Protocol):
    """What the loop needs of an engine (`benthic.engine.engine.Engine` has it)."""

    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None: ...
    def step(self) -> list[Event]: ...
    def has_work(self) -> bool:
        """Whether `step` would return or compute something; while paused, only where a cancelled request waits."""
        ...

    def fail_all(self, error: str) -> list[Event]: ...
    def stats(self) -> EngineStats: ...
    def pause(self, mode: PauseMode) -> list[Event]:
        """Drains what is in flight; later steps compute nothing. Returns what the drained pass brought."""
        ...

    def resume(self) -> None: ...
    def update_weights(self, source: str, version: int | None, checksum: str | None) -> list[Event]:
        """Drains, retracts and loads; CheckpointError leaves everything as it was."""
        ...

    def flush(self) -> None: ...
    def describe(self) -> str:
        """Queues, pools and passes in flight; may be called from another thread while a step hangs."""
        ...

    def check_laws(self) -> None:
        """Asserts conservation of every pool."""
        ...


class EngineLoop:
    """Runs an engine until `Close`.

    Args:
        engine: used by the calling thread alone.
        inbox: commands; None wakes the loop.
        send: takes replies, in order; must not wait.
        heartbeat: marked around each step.
    """

    def __init__(
        self,
        engine: StepEngine,
        inbox: "queue.SimpleQueue[Command]",
        send: Callable[[Reply], None],
        heartbeat: Heartbeat,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._send = send
        self._heartbeat = heartbeat
        self._is_closing = False
        self._reported_at = 0.0

    def run(self) -> None:
        """Returns after `Close`, when everything live has been answered."""
        while not self._is_closing:
            self._take_commands(wait=not self._engine.has_work())
            if self._engine.has_work() and not self._is_closing:
                self._report(self._step())

    def _step(self) -> list[Event]:
        try:
            with self._heartbeat:
                return self._engine.step()
        except Exception as error:  # noqa: BLE001 - the border: a failing step ends its requests, not the loop
            logger.exception("an engine step failed; its requests end with an error")
            return self._engine.fail_all(f"{type(error).__name__}: {error}")

    def _report(self, events: list[Event], *, always: bool = False) -> None:
        now = time.monotonic()
        if events or always or now - self._reported_at > REPORT_EVERY_S:
            self._reported_at = now
            self._send(Report(tuple(events), self._engine.stats()))

    def _take_commands(self, *, wait: bool) -> None:
        while not self._is_closing:
            try:
                command = self._inbox.get(block=wait)
            except queue.Empty:
                return
            wait = False
            match command:
                case Request():
                    self._report(self._admit(command))
                case Cancel(request_id, reason):
                    self._engine.cancel(request_id, reason)
                case Close():
                    self._is_closing = True
                    self._report(self._engine.fail_all(CLOSED), always=True)
                case _:
                    self._answer(command)

    def _admit(self, request: Request) -> list[Event]:
        try:
            self._engine.add(request)
        except (RequestError, CapacityError) as error:
            return [refusal(request, error)]
        return []

    def _answer(self, call: Call) -> None:
        """Events that a call brings precede its answer: after a pause's answer no token comes."""
        try:
            value, events = self._carry_out(call)
        except (BenthicError, AssertionError, OSError) as error:
            if isinstance(error, AssertionError):
                logger.exception("a law of the engine is broken")
            self._send(Failed(call.number, type(error).__name__, str(error)))
            return
        self._report(events, always=True)
        self._send(Done(call.number, value))

    def _carry_out(self, call: Call) -> tuple[str, list[Event]]:
        engine = self._engine
        match call:
            case Pause(_, mode):
                return "", engine.pause(mode)
            case Resume():
                engine.resume()
            case UpdateWeights(_, path, version, checksum):
                events = engine.update_weights(path, version, checksum)
                return str(engine.stats().weight_version), events
            case Flush():
                engine.flush()
            case Dump():
                return engine.describe(), []
            case Check():
                engine.check_laws()
        return "", []
