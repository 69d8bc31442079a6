"""A process by pid and start time: a pid alone may be another's by the time it is used."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(r"(\d+)_(\d+)(?![0-9])")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """One process of this machine, for ever."""

    pid: int
    start_ticks: int
    """When it was started, in clock ticks since boot (field 22 of /proc/PID/stat)."""

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """The process that has this pid now, or None."""
        ticks = _start_ticks(pid)
        return None if ticks is None else cls(pid, ticks)

    @classmethod
    def named(cls, name: str) -> "ProcessId | None":
        """Of a name that begins with a `mark`."""
        found = _MARK.match(name)
        return None if found is None else cls(int(found[1]), int(found[2]))

    @property
    def mark(self) -> str:
        """Begins the name of what is worth nothing once this process has ended."""
        return f"{self.pid}_{self.start_ticks}"

    def is_alive(self) -> bool:
        """Whether it runs; one that ended and was not waited for does not."""
        return _start_ticks(self.pid) == self.start_ticks

    def kill(self, signal_: signal.Signals = signal.SIGKILL) -> bool:
        """Sends a signal to it and to no other; whether it was there."""
        with self._opened() as pidfd:
            if pidfd is None:
                return False
            try:
                signal.pidfd_send_signal(pidfd, signal_)
            except ProcessLookupError:
                return False
            return True

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Until it has ended, child of ours or not; whether it has within that time. A child leaves no zombie."""
        # Its first thread may be a zombie already while others still end: only then all of it can be reaped.
        with self._opened(or_zombie=True) as pidfd:
            if pidfd is not None:
                ended = asyncio.Event()
                loop = asyncio.get_running_loop()
                loop.add_reader(pidfd, ended.set)
                try:
                    await asyncio.wait_for(ended.wait(), timeout_s)
                except TimeoutError:
                    return False
                finally:
                    loop.remove_reader(pidfd)
        if _stat(self.pid) == ("Z", self.start_ticks):
            with contextlib.suppress(ChildProcessError):  # whoever adopted it reaps it
                os.waitpid(self.pid, os.WNOHANG)
        return True

    @contextlib.contextmanager
    def _opened(self, *, or_zombie: bool = False) -> Iterator[int | None]:
        """A handle on it, or None if it has ended. Its start is looked at when the handle already holds the pid."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            is_it = self.is_alive() or (or_zombie and _stat(self.pid) == ("Z", self.start_ticks))
            yield pidfd if is_it else None
        finally:
            os.close(pidfd)


def _start_ticks(pid: int) -> int | None:
    state, ticks = _stat(pid)
    return None if state in ("Z", "X", "") else ticks


def _stat(pid: int) -> tuple[str, int]:
    """The state's letter, empty if there is no such process, and when it was started."""
    try:
        # The name in brackets may hold anything, brackets too.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[19])
