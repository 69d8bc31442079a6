"""Recording an engine's passes with torch's profiler: a trace file that Chrome (chrome://tracing) and Perfetto open.

A recording holds every operation in memory until it is written, so it ends by itself after a number of steps. It slows
the engine and changes no token.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benthic.errors import RequestError

if TYPE_CHECKING:
    from torch.profiler import profile

MAX_STEPS = 10_000
"""Of one recording."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileWish:
    """What to record, and where the trace goes."""

    folder: str
    """Made if it is not there."""
    num_steps: int = 100
    """After so many steps the recording ends by itself, 1 to MAX_STEPS."""
    with_stack: bool = False
    """Whether each operation names the lines of Python that called it; slower, and larger files."""
    record_shapes: bool = False
    """Whether each operation tells the shapes of its inputs."""


class Profiler:
    """At most one recording at a time. Belongs to the thread that runs the engine's steps."""

    def __init__(self) -> None:
        self._running: profile | None = None
        self._path = Path()
        self._steps_left = 0
        self._step = 0
        self._finished: Path | None = None

    def start(self, wish: ProfileWish) -> Path:
        """Begins a recording; returns where its trace will be.

        Raises:
            RequestError: one is running, or nothing can be written into the folder.
        """
        if self._running is not None:
            raise RequestError("a profile is being recorded already; stop it first, or let it end")
        self._path = _trace_path(wish.folder)
        self._running = _recorder(wish)
        self._running.start()
        self._steps_left, self._step, self._finished = wish.num_steps, 0, None
        logger.info("recording the next %d steps for %s", wish.num_steps, self._path)
        return self._path

    def stop(self) -> Path:
        """Ends the recording, or takes the one that has ended by itself; returns the trace's path.

        Raises:
            RequestError: there is none, or it cannot be written.
        """
        if self._running is not None:
            self._write()
        if self._finished is None:
            raise RequestError("no profile is being recorded; start one first")
        path, self._finished = self._finished, None
        return path

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around each step of the engine."""
        if self._running is None:
            yield
            return
        from torch.profiler import record_function

        self._step += 1
        with record_function(f"step {self._step}"):
            yield
        self._steps_left -= 1
        if self._steps_left == 0:
            try:
                self._write()
            except RequestError as error:
                logger.warning("%s", error)

    def _write(self) -> None:
        running, self._running = self._running, None
        assert running is not None
        running.stop()
        try:
            running.export_chrome_trace(str(self._path))
        except (OSError, RuntimeError) as error:
            raise RequestError(f"the trace could not be written to {self._path}: {error}", param="output_dir") from None
        self._finished = self._path
        logger.info("wrote %d steps to %s", self._step, self._path)


def _recorder(wish: ProfileWish) -> "profile":
    import torch
    from torch._C._profiler import _ExperimentalConfig
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    return profile(
        activities=activities,
        with_stack=wish.with_stack,
        record_shapes=wish.record_shapes,
        # Passes that overlap run in a thread of their own on the CPU.
        experimental_config=_ExperimentalConfig(profile_all_threads=True),
    )


def _trace_path(folder: str) -> Path:
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"output_dir {folder} cannot be made: {error.strerror}", param="output_dir") from None
    if not os.access(place, os.W_OK | os.X_OK):
        raise RequestError(f"output_dir is {folder}, where nothing can be written; name another", param="output_dir")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return place.absolute() / f"benthic-{stamp}-{os.getpid()}-{time.monotonic_ns() % 1_000_000:06d}.trace.json.gz"
