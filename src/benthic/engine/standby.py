"""A process that waits to take a dead engine's place, with behind it what takes a start most of its time.

It has imported the libraries and, where the engine is small, built the whole of it; see `EngineSpec.ahead`. It is made
some time after the engine has become ready, so that it takes nothing from a start, and replaced when it dies.
"""

import logging
import time

from benthic.engine.messages import EngineSpec, Prepare, Start
from benthic.engine.supervisor import ChildProcess

_RETRY_S = 60.0

logger = logging.getLogger(__name__)


class Standby:
    """At most one waiting process. Belongs to the supervising thread, whose end ends the process.

    Args:
        spec: what it prepares; without `ahead` there is never one.
        wait_s: how long after the engine is ready it is made.
    """

    def __init__(self, spec: EngineSpec, wait_s: float) -> None:
        self._spec = spec
        self._wait_s = wait_s
        self._due_s: float | None = None
        self._child: ChildProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the one that waits."""
        child = self._child
        return None if child is None else child.pid

    def tend(self) -> None:
        """Makes one when it is time to. To be called now and then while the engine is ready."""
        now_s = time.monotonic()
        if self._spec.ahead is None:
            return
        if self._child is not None and not self._child.is_alive:
            logger.warning("the process that stood by %s", self._child.bury())
            self._child, self._due_s = None, now_s + _RETRY_S
        if self._due_s is None:
            self._due_s = now_s + self._wait_s
        if self._child is None and now_s >= self._due_s:
            try:
                self._child = ChildProcess(Prepare(self._spec))
            except OSError as error:
                self._due_s = now_s + _RETRY_S
                logger.warning("no process can stand by: %s", error)

    def take(self, start: Start) -> ChildProcess | None:
        """The waiting process, told to start; None: there is none."""
        child, self._child, self._due_s = self._child, None, None
        if child is None:
            return None
        if not child.is_alive:
            child.bury()
            return None
        child.begin(start)
        return child

    def close(self) -> None:
        """Ends the waiting process."""
        if self._child is not None:
            self._child.kill()
            self._child.bury()
            self._child = None
