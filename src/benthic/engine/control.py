"""The loop around an engine: commands in, steps, replies out. The same loop runs in a thread and in a child process.

Calls are carried out between steps, at a drained boundary: no pass is in flight while an engine pauses, takes weights
or is checked. A step that fails ends its requests, not the loop; a call that fails, however it fails, is answered so
and ends nothing, unless the engine itself says that it was left half-way (`is_sound`).
"""

import json
import logging
import queue
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any, Protocol

from benthic.engine.handle import refusal
from benthic.engine.held_file import HeldFile, is_file
from benthic.engine.messages import (
    Call,
    Cancel,
    Check,
    Checksum,
    Close,
    Command,
    Done,
    Dump,
    Failed,
    Flush,
    Pause,
    PauseMode,
    ReadWeight,
    ReleaseMemory,
    Reply,
    Report,
    Resume,
    StartProfile,
    StopProfile,
    TakeMemory,
    UpdateWeights,
)
from benthic.engine.profiling import Profiler
from benthic.engine.request import Event, FinishReason, Request
from benthic.engine.stats import EngineStats
from benthic.engine.watchdog import Heartbeat
from benthic.engine.weight_reading import WeightValues
from benthic.engine.weight_versions import WeightUpdate
from benthic.errors import BenthicError, CapacityError, CheckpointError, EngineError, RequestError, WeightsLostError

CLOSED = "the engine was closed"
REPORT_EVERY_S = 0.1
"""Figures are reported at least this often while steps bring no events, as in a long prefill."""

NEEDS_WEIGHTS = "the engine needs weights"
_LONGEST_WAIT_S = 3600.0

logger = logging.getLogger(__name__)


class StepEngine(Protocol):
    """What the loop needs of an engine (`benthic.engine.engine.Engine` has it)."""

    def add(self, request: Request) -> None: ...
    def cancel(self, request_id: str, reason: FinishReason = "cancelled") -> None: ...
    def step(self) -> list[Event]: ...
    def has_work(self) -> bool:
        """Whether `step` would return or compute something; while paused, only for a cancelled or late request."""
        ...

    def idle_s(self) -> float:
        """For how long there will be no work, unless a command brings some; infinite if for ever."""
        ...

    @property
    def is_sound(self) -> bool:
        """Whether its books are whole; false after a step or call that was interrupted, until `fail_all`."""
        ...

    def fail_all(self, error: str) -> list[Event]: ...
    def stats(self) -> EngineStats: ...
    def pause(self, mode: PauseMode) -> list[Event]:
        """Drains what is in flight; later steps compute nothing. Returns what the drained pass brought."""
        ...

    def resume(self) -> None: ...
    def update_weights(
        self, source: str | Mapping[str, Any], version: int | None = None, checksum: str | None = None
    ) -> WeightUpdate:
        """All errors but WeightsLostError leave weights and requests as they were."""
        ...

    def know_versions(self, known: Iterable[tuple[int, str]]) -> None:
        """Versions, with their checksums, of the weights of an engine before this one."""
        ...

    def flush(self) -> None: ...
    def read_weight(self, name: str, max_values: int) -> WeightValues: ...
    def weights_checksum(self) -> str: ...
    def release_memory(self) -> None:
        """Only while paused; running requests wait, and are computed anew."""
        ...

    def take_memory(self) -> None: ...
    def describe(self) -> str:
        """Queues, pools and passes in flight; may be called from another thread while a step hangs."""
        ...

    def check_laws(self) -> None:
        """Asserts conservation of every pool."""
        ...

    def close(self) -> None:
        """Ends what it has besides its memory, such as threads."""
        ...


class EngineLoop:
    """Runs an engine until `Close`.

    Args:
        engine: used by the calling thread alone.
        inbox: commands; None wakes the loop.
        send: takes replies, in order; must not wait.
        heartbeat: marked around each step and call, and after each command.
        holds_files: whether a file of installed weights is held open for another process to open again.
    """

    def __init__(
        self,
        engine: StepEngine,
        inbox: "queue.SimpleQueue[Command]",
        send: Callable[[Reply], None],
        heartbeat: Heartbeat,
        *,
        holds_files: bool = False,
    ) -> None:
        self._engine = engine
        self._inbox = inbox
        self._send = send
        self._heartbeat = heartbeat
        self._holds_files = holds_files
        self._file: HeldFile | None = None
        self._profiler = Profiler()
        self._lack = ""  # why there are no weights to answer with
        self._is_closing = False
        self._reported_at = 0.0

    def restore(self, weights: UpdateWeights) -> None:
        """Takes the weights that an engine before this one had. If they cannot be had, requests are refused until an
        update brings others."""
        assert weights.checksum is not None, weights
        try:
            self._update(weights)
            self._report([], always=True)
        except Exception as error:  # noqa: BLE001 - the border: an operator can mend it, and only while the loop runs
            logger.exception("the weights of version %s could not be loaded again", weights.version)
            self._lose(f"those of version {weights.version} could not be loaded again ({_text(error)})")

    def run(self) -> None:
        """Returns after `Close`, when everything live has been answered."""
        self._report([], always=True)
        while not self._is_closing:
            self._take_commands(wait_s=0.0 if self._engine.has_work() else self._engine.idle_s())
            if self._engine.has_work() and not self._is_closing:
                self._report(self._step())

    def _step(self) -> list[Event]:
        try:
            with self._heartbeat, self._profiler.step():
                return self._engine.step()
        except Exception as error:  # noqa: BLE001 - the border: a failing step ends its requests, not the loop
            logger.exception("an engine step failed; its requests end with an error")
            return self._engine.fail_all(f"{type(error).__name__}: {error}")

    def _report(self, events: list[Event], *, always: bool = False) -> None:
        now = time.monotonic()
        if events or always or now - self._reported_at > REPORT_EVERY_S:
            self._reported_at = now
            self._send(Report(tuple(events), replace(self._engine.stats(), needs_weights=bool(self._lack))))

    def _take_commands(self, *, wait_s: float) -> None:
        """Deals with all commands that have come, waiting so long for the first."""
        while not self._is_closing:
            try:
                command = self._inbox.get(block=wait_s > 0, timeout=min(wait_s, _LONGEST_WAIT_S))
            except queue.Empty:
                return
            wait_s = 0.0
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
            self._heartbeat.took_command()

    def _admit(self, request: Request) -> list[Event]:
        if self._lack:
            error = EngineError(f"{NEEDS_WEIGHTS}: {self._lack}; update them, then send it again")
            return [refusal(request, error)]
        try:
            self._engine.add(request)
        except (RequestError, CapacityError) as error:
            return [refusal(request, error)]
        except Exception as error:  # noqa: BLE001 - the border: one request's trouble is not the others'
            logger.exception("request %r could not be taken", request.request_id)
            return [refusal(request, EngineError(_text(error)))]
        return []

    def _answer(self, call: Call) -> None:
        """Events that a call brings precede its answer: after a pause's answer no token comes."""
        try:
            with self._heartbeat:
                done, events = self._carry_out(call)
        except Exception as error:  # noqa: BLE001 - the border: a failing call ends with its caller, not the loop
            if not isinstance(error, BenthicError):
                logger.exception("a call of the engine failed: %s", type(call).__name__)
            if isinstance(error, WeightsLostError):
                self._lose(str(error))
            if not self._engine.is_sound:
                self._report(self._engine.fail_all(_text(error)), always=True)
            self._send(Failed(call.number, type(error).__name__, str(error)))
            return
        self._report(events, always=True)
        self._send(done)

    def _carry_out(self, call: Call) -> tuple[Done, list[Event]]:
        engine, value, events = self._engine, "", list[Event]()
        match call:
            case Pause(_, mode):
                events = engine.pause(mode)
            case Resume():
                engine.resume()
            case UpdateWeights():
                return self._update(call)
            case Flush():
                engine.flush()
            case Dump():
                value = engine.describe()
            case Check():
                engine.check_laws()
            case ReadWeight(_, name, max_values):
                value = json.dumps(asdict(engine.read_weight(name, max_values)))
            case Checksum():
                value = engine.weights_checksum()
            case ReleaseMemory():
                engine.release_memory()
            case TakeMemory():
                engine.take_memory()
            case StartProfile(_, wish):
                value = str(self._profiler.start(wish))
            case StopProfile():
                value = str(self._profiler.stop())
        return Done(call.number, value), events

    def _update(self, call: UpdateWeights) -> tuple[Done, list[Event]]:
        source = call.held if call.held and is_file(call.held) else call.source
        file = HeldFile(source) if self._holds_files and isinstance(source, str) and is_file(source) else None
        try:
            update = self._engine.update_weights(source if file is None else file.path, call.version, call.checksum)
        except BaseException as error:
            if file is None:
                raise
            file.close()
            if isinstance(error, CheckpointError):  # in the words of the caller
                raise CheckpointError(str(error).replace(file.path, str(call.source))) from None
            raise
        if self._file is not None:
            self._file.close()
        self._file, self._lack = file, ""
        held = "" if file is None else file.path
        return Done(call.number, str(update.version), checksum=update.checksum, held=held), update.events

    def _lose(self, why: str) -> None:
        self._lack = why
        self._report(self._engine.fail_all(f"{NEEDS_WEIGHTS}: {why}"), always=True)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
