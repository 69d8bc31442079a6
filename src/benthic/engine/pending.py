"""Passes on their way: launched in order, finished in order.

On an accelerator the device itself is the queue: launching returns at once. On the CPU a pass is a computation of the
host; with `in_thread` it runs in a thread of its own, so that the engine can plan the next one meanwhile, and without
it runs where it is launched.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from benthic.engine.plan import StepResult


class PendingStep(Protocol):
    """A launched pass."""

    def result(self) -> StepResult:
        """What came out of it, waiting for it. Raises what the pass raised."""
        ...


class FinishedStep:
    """A pass whose results only need to be collected."""

    def __init__(self, collect: Callable[[], StepResult]) -> None:
        self._collect = collect

    def result(self) -> StepResult:
        """See `PendingStep`."""
        return self._collect()


class ThreadedStep:
    """A pass that runs in the thread of a `PassLane`."""

    def __init__(self, running: Future[Callable[[], StepResult]]) -> None:
        self._running = running

    def result(self) -> StepResult:
        """See `PendingStep`."""
        return self._running.result()()


class PassLane:
    """Runs passes one after the other."""

    def __init__(self, *, in_thread: bool) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="benthic-pass") if in_thread else None

    @property
    def in_thread(self) -> bool:
        """Whether a launch returns before its pass has run."""
        return self._pool is not None

    def launch(self, run: Callable[[], Callable[[], StepResult]]) -> PendingStep:
        """Runs a pass after those launched before; what it returns collects the results."""
        if self._pool is None:
            return FinishedStep(run())
        return ThreadedStep(self._pool.submit(run))

    def close(self) -> None:
        """Waits for what was launched and ends the thread."""
        if self._pool is not None:
            self._pool.shutdown()
