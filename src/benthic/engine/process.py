"""An engine in a process of its own, with the interface of `EngineWorker`.

    engine = EngineProcess(EngineSpec(model="tiny"))
    engine.start()
    facts = engine.wait_ready()
    engine.add(Request(...)); engine.receive(); engine.pause("keep").result(); engine.close()

A thread supervises the child: it passes replies on, watches the heartbeat, and when the child dies (killed, out of
memory, a fault in a library, a stalled step, a command that is not taken) it answers every pending request and call
with an error that says so and starts another child, which takes over the latest weights and a pause; where one stands
by, that one. Requests that come in between wait for it. The file of the latest weights is held open here, and their
checksum is kept: a child that cannot have those very weights again refuses requests until an update ("needs weights").

A request's time counts from its arrival here. The child ends those that are late; another thread here answers those for
which there is no child, or none that gets on.

    new -> starting -> running <-> restarting -> failed          any -> closed
              `----------------------------------^

The first start is not repeated: whoever started it is there to read why it failed.
"""

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from benthic.engine.control import CLOSED
from benthic.engine.handle import EngineHandle, Late, error_of
from benthic.engine.held_file import HeldFile
from benthic.engine.messages import (
    COMMANDS,
    Cancel,
    Close,
    Command,
    Done,
    EngineFacts,
    EngineSpec,
    Failed,
    Pause,
    Ready,
    Reply,
    Report,
    Resume,
    Start,
    StartFailed,
    UpdateWeights,
)
from benthic.engine.request import FinalOutput, Request
from benthic.engine.standby import Standby
from benthic.engine.stats import EngineStats
from benthic.engine.supervisor import ChildProcess, RestartPolicy, Restarts
from benthic.errors import BenthicError, CheckpointError, EngineError, RequestError

_POLL_S = 0.1
_STALL_GRACE_S = 2.0
"""The child's own watchdog writes its picture before the parent ends it."""
_LATE_GRACE_S = 0.5
"""The child's own answer to a request whose time is over has this long to come; it says more."""

logger = logging.getLogger(__name__)


class EngineProcess(EngineHandle):
    """Supervises an engine in a child process.

    Args:
        spec: what the child builds.
        restarts: how a dead child is replaced.
    """

    def __init__(self, spec: EngineSpec, *, restarts: RestartPolicy | None = None) -> None:
        super().__init__()
        self._spec = spec
        policy = restarts or RestartPolicy()
        self._restarts = Restarts(policy)
        self._standby = Standby(spec, policy.standby_after_s)
        self._lock = threading.RLock()  # a future's callback may call back
        self._state = "new"
        self._child: ChildProcess | None = None
        self._backlog: dict[str, Request] = {}
        self._changes: dict[int, Pause | Resume | UpdateWeights] = {}
        self._weights: UpdateWeights | None = None
        self._file: HeldFile | None = None
        self._versions: dict[int, str] = {}
        self._is_paused = False
        self._facts: EngineFacts | None = None
        self._error: BenthicError | None = None
        self._settled = threading.Event()
        self._closing = threading.Event()
        self._is_over = threading.Event()
        self._close_by = float("inf")
        self._was_useful = False
        self._greeted_at: float | None = None
        self._thread = threading.Thread(target=self._supervise, name="benthic-supervisor", daemon=True)
        self._time_keeper = threading.Thread(target=self._keep_time, name="benthic-deadlines", daemon=True)

    @property
    def state(self) -> str:
        """One of "new", "starting", "running", "needs weights", "restarting", "failed" or "closed"."""
        state = self._state
        return "needs weights" if state == "running" and self.stats.needs_weights else state

    @property
    def num_restarts(self) -> int:
        """Children that have died and were replaced."""
        return self._restarts.num_deaths

    @property
    def pid(self) -> int | None:
        """Process id of the present child."""
        child = self._child
        return None if child is None else child.pid

    @property
    def standby_pid(self) -> int | None:
        """Process id of the one that waits to take the child's place."""
        return self._standby.pid

    def start(self) -> None:
        """Starts the first child, unless that has been done; returns at once."""
        with self._lock:
            if self._state != "new":
                return
            self._state = "starting"
            self._thread.start()
            self._time_keeper.start()

    def wait_ready(self, timeout_s: float | None = None) -> EngineFacts:
        """What the engine says of itself, once it can answer.

        Raises:
            ConfigError, CheckpointError: the engine could not be built.
            EngineError: its process died, or it is not ready in time.
        """
        if not self._settled.wait(timeout_s):
            raise EngineError(f"the engine was not ready within {timeout_s:g} s; large models take longer to load")
        if self._facts is None:
            raise self._error or EngineError(CLOSED)
        return self._facts

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancels what is live, ends the child and the supervisor, and wakes one waiting `receive`."""
        self._close_by = time.monotonic() + timeout_s
        with self._lock:
            was_new, self._state = self._state == "new", "closed"
            if self._child is not None:
                self._child.send(Close())
        self._closing.set()
        if was_new:
            self._end()
        else:
            self._thread.join()
            self._time_keeper.join()

    def update_weights(
        self, source: str | Path | Mapping[str, Any], version: int | None = None, checksum: str | None = None
    ) -> Future[str]:
        """As `EngineHandle.update_weights`, from a path: a state dict does not go to another process.

        Raises:
            RequestError: an argument is of no use.
        """
        if isinstance(source, Mapping):
            raise RequestError(
                "the weights are a state dict and the engine runs in another process; write them to a file with "
                "write_weights and give its path",
                param="model_path",
            )
        return super().update_weights(source, version, checksum)

    def _send(self, command: Command) -> None:
        assert isinstance(command, COMMANDS), command
        with self._lock:
            if self._state == "running" and self._child is not None:
                if isinstance(command, Pause | Resume | UpdateWeights):
                    self._changes[command.number] = command
                self._child.send(command)
            elif isinstance(command, Request) and self._state in ("new", "starting", "restarting"):
                if self._answers.is_open(command.request_id):
                    self._backlog[command.request_id] = command
            else:
                self._answer_here(command)

    def _answer_here(self, command: Command) -> None:
        """A command for which there is no child now."""
        error = f"the engine is {self._state} and cannot answer"
        match command:
            case Request(request_id=request_id):
                self._answers.end(request_id, "error", error)
            case Cancel(request_id, reason):
                if self._backlog.pop(request_id, None) is not None:
                    self._answers.end(request_id, reason)
            case Close():
                pass
            case _:
                self._answers.take(Failed(command.number, "EngineError", error))

    def _supervise(self) -> None:
        try:
            while self._live_one_life():
                pass
        except BaseException as error:
            self._give_up(EngineError(f"the engine's supervisor ended: {type(error).__name__}: {error}"))
            raise
        finally:
            self._standby.close()
            self._end()

    def _end(self) -> None:
        """Nothing is owed any more, and nobody waits."""
        with self._lock:
            self._backlog.clear()
            self._answers.fail(CLOSED)
        self._hold("")
        self._is_over.set()
        self._settled.set()
        self._answers.wake()

    def _keep_time(self) -> None:
        default_s = self._spec.engine.request_timeout_s
        while not self._is_over.wait(_POLL_S):
            for late in self._answers.late(default_s):
                self._time_out(late)

    def _time_out(self, late: Late) -> None:
        name = late.request_id
        with self._lock:
            if name in self._backlog:
                if self._answers.time_out(late, f"the engine is {self._state}", is_held=False):
                    del self._backlog[name]
            elif late.overdue_s > _LATE_GRACE_S:
                was_open = self._answers.time_out(late, "the engine has not ended it by then", is_held=True)
                if was_open and self._child is not None:
                    self._child.send(Cancel(name, "cancelled"))

    def _live_one_life(self) -> bool:
        """Runs one child from start to burial; returns whether another one shall follow."""
        self._was_useful, self._greeted_at = False, None
        start = Start(
            spec=self._spec,
            weights=self._weights,
            versions=tuple(self._versions.items()),
            is_paused=self._is_paused,
            least_len=0 if self._facts is None else self._facts.max_model_len,
            dump_path="",
        )
        try:
            child = self._standby.take(start) or ChildProcess(start)
        except OSError as error:
            return self._mourn(f"could not be started: {error}")
        with self._lock:
            self._child = child
            if self._state == "closed":  # before there was a child to tell
                child.kill()
        cause = ""
        try:
            cause = self._listen(child)
        except BaseException:
            child.kill()
            raise
        finally:
            ending = child.bury()
            with self._lock:
                self._child = None
        return self._mourn(cause or ending)

    def _listen(self, child: ChildProcess) -> str:
        """Passes replies on until there are no more; a text when the child had to be ended."""
        while (replies := child.receive(_POLL_S)) is not None:
            for reply in replies:
                self._take(child, reply)
            if stalled := self._stalled(child):
                logger.error("the engine %s; its process is ended:\n%s", stalled, child.kill_stalled())
                return f"was ended because it {stalled}; {child.dump.place}"
            if self._greeted_at is not None and not self._closing.is_set():
                self._standby.tend()
            if self._closing.is_set() and (self._greeted_at is None or time.monotonic() > self._close_by):
                child.kill()
        return ""

    def _stalled(self, child: ChildProcess) -> str:
        """What is wrong with a child that lives and does not get on; empty: nothing."""
        stall_s = self._spec.engine.stall_timeout_s
        if child.busy_s() > stall_s + _STALL_GRACE_S:
            return f"had a step or call that ran for more than {stall_s:g} s"
        if self._greeted_at is None:
            return ""
        owes = self._answers.num_calls > 0 or (self._answers.num_open > 0 and not self._is_paused)
        if child.silent_s(owes=owes) > stall_s + _STALL_GRACE_S:
            return f"took no command and showed no sign of life for more than {stall_s:g} s"
        return ""

    def _take(self, child: ChildProcess, reply: Reply) -> None:
        match reply:
            case Ready(facts):
                self._welcome(child, facts)
            case StartFailed(kind, message):
                self._error = error_of(kind, message)
            case Report(events):
                self._was_useful |= any(isinstance(e, FinalOutput) and e.finish_reason != "error" for e in events)
                self._answers.take(reply)
            case Done(number) | Failed(number):
                with self._lock:
                    change = self._changes.pop(number, None)
                if isinstance(reply, Done) and change is not None:
                    self._remember(change, reply)
                self._answers.take(reply)

    def _remember(self, change: Pause | Resume | UpdateWeights, done: Done) -> None:
        """What a child after this one must take over."""
        if not isinstance(change, UpdateWeights):
            self._is_paused = isinstance(change, Pause)
            return
        version, held = int(done.value), self._hold(done.held)
        self._weights = replace(change, version=version, checksum=done.checksum, held=held)
        self._versions[version] = done.checksum

    def _hold(self, path: str) -> str:
        """Holds the file of the weights in force ("": none), which the child has open, and lets the one before go."""
        before, self._file = self._file, None
        if path:
            try:
                self._file = HeldFile(path)
            except CheckpointError:  # the child has just died; what it was told to load may still be there
                logger.warning("the file of the weights in force could not be held open")
        if before is not None:
            before.close()
        return "" if self._file is None else self._file.path

    def _welcome(self, child: ChildProcess, facts: EngineFacts) -> None:
        with self._lock:
            self._facts = facts
            self._greeted_at = time.monotonic()
            if not self._closing.is_set():
                self._state = "running"
                for name, request in self._backlog.items():
                    child.send(replace(request, waited_s=self._answers.waited_s(name)))
                self._backlog.clear()
        self._settled.set()

    def _mourn(self, ending: str) -> bool:
        """Answers what the dead child owed; returns whether another one shall follow."""
        text = f"the engine's process {ending}"
        if self._closing.is_set():
            return False
        with self._lock:
            if self._state == "running":
                self._state = "restarting"
                self._changes.clear()
                self._answers.stats = EngineStats()
                self._answers.fail(f"{text}; send the request again")
        if self._facts is None:
            self._give_up(self._error or EngineError(text))
            return False
        lived_s = 0.0 if self._greeted_at is None else time.monotonic() - self._greeted_at
        wait_s = self._restarts.wait_s(lived_s, was_useful=self._was_useful)
        if wait_s is None:
            reason = f": {self._error}" if self._error is not None else ""
            times = "it died again and again soon after its start and is not started any more"
            self._give_up(EngineError(f"{text}{reason}; {times}"))
            return False
        self._error = None
        logger.error("%s; another one is started in %.1f s", text, wait_s)
        return not self._closing.wait(wait_s)

    def _give_up(self, error: BenthicError) -> None:
        logger.critical("the engine is not available any more: %s", error)
        with self._lock:
            self._error = error
            if self._state != "closed":
                self._state = "failed"
            self._backlog.clear()
            self._answers.fail(str(error))
        self._settled.set()
