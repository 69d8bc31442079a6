"""A thread that owns an engine: requests and cancellations go in on one channel, events come out on another.

    worker = EngineWorker(engine)
    worker.start()
    worker.add(Request(...))            # from any thread, returns at once
    for event in worker.receive():      # blocks; one list a step
        ...                             # TokenEvent or FinalOutput, told apart by type, routed by request_id
    worker.pause("keep").result()       # calls answer by futures
    worker.close()

Results are returned from `receive`, never pushed through callbacks: an asynchronous server runs `receive` in a thread
of its own and routes the events. Every request that was added gets exactly one `FinalOutput`: also one that is
refused (finish_reason "error"), one that is cancelled, and all of them when a step fails or the worker closes.
`EngineProcess` is the same over a process of its own.
"""

import logging
import queue
import threading

from benthic.engine.control import CLOSED, EngineLoop, StepEngine
from benthic.engine.handle import EngineHandle
from benthic.engine.messages import Close, Command, Done, Failed, Reply, Report
from benthic.engine.watchdog import Heartbeat, ThreadWatchdog, thread_dump_path

logger = logging.getLogger(__name__)


class EngineWorker(EngineHandle):
    """Runs an engine's steps in a daemon thread.

    Args:
        engine: from now on used by the thread alone, which closes it in the end.
        stall_timeout_s: a step or call that takes longer is reported in the log, with all stacks.
    """

    def __init__(self, engine: StepEngine, *, stall_timeout_s: float = 300.0) -> None:
        super().__init__()
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._engine = engine
        self._stall_timeout_s = stall_timeout_s
        self._heartbeat = Heartbeat()
        self._answers.stats = engine.stats()
        self._thread = threading.Thread(target=self._main, name="benthic-engine", daemon=True)
        self._is_closing = False
        self._has_ended = False

    @property
    def state(self) -> str:
        """One of "new", "running", "needs weights", "stalled", "failed" or "closed"."""
        if self._is_closing:
            return "closed"
        if self._has_ended:
            return "failed"
        if self._heartbeat.busy_s() > self._stall_timeout_s:
            return "stalled"
        if not self._thread.is_alive():
            return "new"
        return "needs weights" if self.stats.needs_weights else "running"

    def start(self) -> None:
        """Starts the thread; once."""
        self._thread.start()

    def close(self, timeout_s: float = 30.0) -> None:
        """Cancels what is live, ends the thread and wakes one waiting `receive` with an empty list."""
        self._is_closing = True
        self._inbox.put(Close())
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        elif not self._has_ended:  # it never began
            self._engine.close()
        self._answers.fail(CLOSED)  # of a step that does not end, nobody can say more
        self._answers.wake()

    def _send(self, command: Command) -> None:
        self._inbox.put(command)
        if self._has_ended:  # it came too late for the thread to see it
            self._answers.fail(CLOSED)

    def _main(self) -> None:
        error = CLOSED
        watchdog = ThreadWatchdog(self._heartbeat, self._stall_timeout_s, self._engine.describe, thread_dump_path())
        try:
            with watchdog:
                EngineLoop(self._engine, self._inbox, self._take, self._heartbeat).run()
        except Exception as failure:  # noqa: BLE001 - the border: nobody but the log and the requests would hear of it
            logger.exception("the engine's thread ended")
            error = f"the engine's thread ended: {type(failure).__name__}: {failure}"
        finally:
            self._has_ended = True
            self._answers.fail(error)
            self._answers.wake()
            self._engine.close()

    def _take(self, reply: Reply) -> None:
        assert isinstance(reply, Report | Done | Failed), reply
        self._answers.take(reply)
