"""Whether the engine's step or call is getting anywhere, seen from outside of it, and a picture when it is not.

The loop marks the begin and end of each step and call in a few bytes of shared memory: two stores, no message. Whoever
watches (a thread of the same process, or the parent of the engine's process) compares the begin with the clock, which
counts alike in all processes of a machine. A step that never ends cannot be ended from within Python, so a thread can
only be reported; a process is killed, and its requests are answered.
"""

import logging
import mmap
import os
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Self

_BEAT = struct.Struct("<dQ")  # when the running step began (0: none runs); how many have begun
_COMMANDS = struct.Struct("<Q")  # commands that have been dealt with
HEARTBEAT_BYTES = _BEAT.size + _COMMANDS.size

logger = logging.getLogger(__name__)


class Heartbeat:
    """Begin of the running step or call, how many there were, and commands dealt with, in shared bytes. One writer, any
    number of readers.

    Args:
        memory: at least HEARTBEAT_BYTES, shared with whoever watches; None: private.
    """

    def __init__(self, memory: mmap.mmap | None = None) -> None:
        self._memory: mmap.mmap | bytearray = bytearray(HEARTBEAT_BYTES) if memory is None else memory
        self._num_steps = 0
        self._num_commands = 0

    def __enter__(self) -> Self:
        """A step begins."""
        self._num_steps += 1
        _BEAT.pack_into(self._memory, 0, time.monotonic(), self._num_steps)
        return self

    def __exit__(self, *_: object) -> None:
        """It has ended, well or not."""
        _BEAT.pack_into(self._memory, 0, 0.0, self._num_steps)

    def took_command(self) -> None:
        """A command has been dealt with."""
        self._num_commands += 1
        _COMMANDS.pack_into(self._memory, _BEAT.size, self._num_commands)

    @property
    def num_commands(self) -> int:
        """Commands dealt with so far."""
        return int(_COMMANDS.unpack_from(self._memory, _BEAT.size)[0])

    @property
    def num_steps(self) -> int:
        """Steps begun so far."""
        return int(_BEAT.unpack_from(self._memory)[1])

    def busy_s(self) -> float:
        """For how long the running step has run; 0 when none does."""
        began = float(_BEAT.unpack_from(self._memory)[0])
        return max(0.0, time.monotonic() - began) if began else 0.0


class ThreadWatchdog:
    """Reports a stalled step of this process, once for each: all stacks and the engine's state, to the log and a file.

    Args:
        heartbeat: of the loop.
        timeout_s: a step that takes longer has stalled.
        describe: the engine's state as text; called while the step hangs, so it may meet half-done changes.
        path: the file; None: only to the log.
    """

    def __init__(self, heartbeat: Heartbeat, timeout_s: float, describe: Callable[[], str], path: Path | None) -> None:
        self._heartbeat = heartbeat
        self._timeout_s = timeout_s
        self._describe = describe
        self._path = path
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="benthic-watchdog", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stops watching."""
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        reported = 0
        while not self._is_over.wait(min(1.0, self._timeout_s / 4)):
            step = self._heartbeat.num_steps
            if step != reported and self._heartbeat.busy_s() > self._timeout_s:
                reported = step
                picture = take_picture(self._describe)
                place = f"also in {self._path}" if _append(self._path, picture) else "nowhere else"
                logger.error(
                    "step or call %d has run for more than %g s; stacks and state, %s:\n%s",
                    step, self._timeout_s, place, picture,
                )  # fmt: skip


def thread_dump_path() -> Path | None:
    """Where an engine in a thread of this process leaves its picture; None where there is no room for such files."""
    try:
        return Path(tempfile.gettempdir()) / f"benthic-stall-{os.getpid()}.txt"
    except OSError:
        return None


def take_picture(describe: Callable[[], str]) -> str:
    """The stacks of all threads and the engine's state, without a file: there may be no room for one."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    stacks = [
        f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    try:
        state = describe()
    except Exception as error:  # noqa: BLE001 - the border: a half-changed engine may not be describable
        state = f"the state could not be read: {type(error).__name__}: {error}"
    return "\n".join([*stacks, state, ""])


def _append(path: Path | None, text: str) -> bool:
    """Whether the text is in the file now."""
    try:
        if path is not None:
            with path.open("a", encoding="utf-8") as file:
                file.write(text)
        return path is not None
    except OSError:
        return False
