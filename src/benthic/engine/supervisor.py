"""One child process from its start to its burial, and the rule by which another one follows.

A `ChildProcess` owns what must not leak: two pipes with a thread at each, a shared heartbeat, the process itself.
`bury` gives all of it back, whatever state the child is in. The threads are there so that nobody else ever waits for
the child: it may stop in the middle of taking a command and in the middle of a reply.
"""

import logging
import mmap
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Pipe

from benthic.engine.messages import Command, Prepare, Reply, Start
from benthic.engine.stall_dump import StallDump
from benthic.engine.watchdog import HEARTBEAT_BYTES, Heartbeat

_DUMP_S = 0.3
"""A stalled child has this long to write down its stacks."""
_EXIT_S = 5.0
"""A child that has closed its pipe has this long to end, and each of its pipes' threads after it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How often and how soon a dead child is replaced."""

    first_wait_s: float = 0.2
    """Before the first restart; each further early death doubles it."""
    max_wait_s: float = 30.0
    early_s: float = 20.0
    """A child that dies sooner than this after it was ready, and without having finished a request, has died early."""
    max_early_deaths: int = 5
    """So many in a row, and no more children are started."""
    standby_after_s: float = 5.0
    """After a child is ready, another is made that stands by, if the spec says how."""


class Restarts:
    """Counts deaths by a policy."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._num_early = 0
        self.num_deaths = 0

    def wait_s(self, lived_s: float, *, was_useful: bool) -> float | None:
        """How long to wait before the next child; None: there will be none."""
        self.num_deaths += 1
        self._num_early = 0 if was_useful or lived_s > self._policy.early_s else self._num_early + 1
        if self._num_early >= self._policy.max_early_deaths:
            return None
        return min(self._policy.first_wait_s * 2 ** max(0, self._num_early - 1), self._policy.max_wait_s)


class Silence:
    """How long nothing has been heard of one from whom something is awaited."""

    def __init__(self) -> None:
        self._signs: object = None
        self._seen_at = 0.0
        self._lasted_s = 0.0

    def end(self) -> None:
        """Something was heard."""
        self._lasted_s = 0.0

    def lasted_s(self, signs: object, now_s: float, *, is_awaited: bool) -> float:
        """Seconds of silence so far, with the signs of life of this moment: a change ends it.

        Of the time between two looks at most a second counts: whoever did not look was asleep too.
        """
        passed_s = min(1.0, now_s - self._seen_at)
        self._seen_at = now_s
        if signs != self._signs or not is_awaited:
            self._signs = signs
            self._lasted_s = 0.0
        else:
            self._lasted_s += passed_s
        return self._lasted_s


class ChildProcess:
    """One run of `benthic.engine.child`. It dies with the thread that made it, so that thread must outlive it.

    Args:
        first: what it is told first; a `dump_path` is filled in here.
    """

    def __init__(self, first: Start | Prepare) -> None:
        self.dump = StallDump()
        commands, self._commands = Pipe(duplex=False)
        self._replies, replies = Pipe(duplex=False)
        heartbeat_fd = os.memfd_create("benthic-heartbeat")
        os.ftruncate(heartbeat_fd, HEARTBEAT_BYTES)
        self._memory = mmap.mmap(heartbeat_fd, HEARTBEAT_BYTES)
        self._heartbeat = Heartbeat(self._memory)
        try:
            self._process = _launch((commands.fileno(), replies.fileno(), heartbeat_fd))
        finally:
            commands.close()
            replies.close()
            os.close(heartbeat_fd)
        self._outgoing: queue.SimpleQueue[Start | Prepare | Command | None] = queue.SimpleQueue()
        if isinstance(first, Prepare):
            self._outgoing.put(first)
        else:
            self.begin(first)
        self._incoming: queue.SimpleQueue[list[Reply] | None] = queue.SimpleQueue()
        self._num_sent = 0
        self._silence = Silence()
        self._writer = threading.Thread(target=self._write, name="benthic-commands", daemon=True)
        self._reader = threading.Thread(target=self._read, name="benthic-replies", daemon=True)
        self._writer.start()
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def begin(self, start: Start) -> None:
        """Tells it to start."""
        self._outgoing.put(replace(start, dump_path=str(self.dump.path or "")))

    def send(self, command: Command) -> None:
        """Hands a command over; never waits, and drops it when the child has gone."""
        self._num_sent += 1
        self._outgoing.put(command)

    def receive(self, timeout_s: float) -> list[Reply] | None:
        """Replies that have come, an empty list after `timeout_s`, or None when there will be none any more."""
        try:
            replies = self._incoming.get(timeout=timeout_s)
        except queue.Empty:
            if self._process.poll() is None:
                return []
            replies = self._last_replies()
        if replies is not None:
            self._silence.end()
        return replies

    def _last_replies(self) -> list[Reply] | None:
        """Of a dead child; a process that it has left behind may hold its pipe open for ever."""
        self._reader.join(_EXIT_S)
        try:
            return self._incoming.get_nowait()
        except queue.Empty:
            return None

    def busy_s(self) -> float:
        """For how long its running step or call has run."""
        return self._heartbeat.busy_s()

    def silent_s(self, *, owes: bool) -> float:
        """For how long it has owed something and shown no sign of life; ask often.

        Args:
            owes: whether something is awaited of it besides that it takes the commands which it was sent.
        """
        has_taken_all = self._heartbeat.num_commands >= self._num_sent
        signs = (self._heartbeat.num_steps, self._heartbeat.num_commands)
        return self._silence.lasted_s(signs, time.monotonic(), is_awaited=owes or not has_taken_all)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def kill_stalled(self) -> str:
        """Has it write its stacks, then ends it; returns them with what its own watchdog wrote."""
        self._process.send_signal(signal.SIGUSR1)
        self._process.send_signal(signal.SIGCONT)  # one that was stopped would not write
        time.sleep(_DUMP_S)
        self._process.kill()
        return self.dump.text()

    def bury(self) -> str:
        """Gives back everything it held; says how it ended. A dump that was written stays."""
        try:
            code: int | None = self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = _exit_code(self._process)
        self._outgoing.put(None)
        # A pipe in which its thread still hangs is left to it: a process that cannot be ended has the other end.
        for thread, connection in ((self._writer, self._commands), (self._reader, self._replies)):
            thread.join(_EXIT_S)
            if not thread.is_alive():
                connection.close()
        self._memory.close()
        self.dump.remove_if_empty()
        return _ending(code)

    def _write(self) -> None:
        try:
            while (command := self._outgoing.get()) is not None:
                self._commands.send(command)
        except OSError:  # it has gone; whoever receives finds out
            pass

    def _read(self) -> None:
        try:
            while True:
                self._incoming.put(self._replies.recv())
        except Exception as error:  # noqa: BLE001 - the border: it has gone, perhaps in the middle of a reply
            if not isinstance(error, EOFError | OSError):
                logger.exception("a reply of the engine's process cannot be read")
                self._process.kill()
        finally:
            self._incoming.put(None)


def _launch(fds: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    # A plain new interpreter: it inherits nothing but these descriptors and does not run the caller's main module.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    return subprocess.Popen(
        [sys.executable, "-m", "benthic.engine.child", *map(str, fds)],
        stdin=subprocess.DEVNULL,
        pass_fds=fds,
        env=environment,
        start_new_session=True,  # Ctrl-C in a terminal is for the parent, which drains
    )


def _exit_code(process: "subprocess.Popen[bytes]") -> int | None:
    """Of a killed process; None for one that the kernel cannot end, as in a call to a device that is gone."""
    try:
        return process.wait(_EXIT_S)
    except subprocess.TimeoutExpired:
        return None


def _ending(code: int | None) -> str:
    if code is None:
        return "could not be killed: it waits inside the kernel"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # those between the first and the last real-time signal have no name
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (by hand, or for lack of memory)" if name == "SIGKILL" else "")
