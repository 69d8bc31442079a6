"""The inside of an engine's process: builds the engine, then runs its loop until told to close or left alone.

    python -m benthic.engine.child COMMANDS REPLIES HEARTBEAT      (inherited file descriptors)

Three threads: the loop, which alone touches the engine; a reader, so that a command reaches the loop between any two
steps; a writer, so that a parent that reads slowly never holds up a step. What the writer holds is bounded by what
the live requests may still generate. When the parent goes, however it goes, so does this process.
"""

import ctypes
import faulthandler
import logging
import mmap
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from benthic.engine.control import EngineLoop
from benthic.engine.factory import BuiltEngine, build
from benthic.engine.messages import Close, Command, Ready, Reply, Start, StartFailed
from benthic.engine.watchdog import HEARTBEAT_BYTES, Heartbeat, ThreadWatchdog
from benthic.errors import BenthicError

LAST_WORDS_S = 3.0
"""How long a process without a parent may take to end by itself."""
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


def main(arguments: list[str]) -> int:
    """Runs until the end; returns the exit code."""
    commands_fd, replies_fd, heartbeat_fd = map(int, arguments)
    _become_a_child()
    commands, replies = Connection(commands_fd, writable=False), Connection(replies_fd, readable=False)
    memory = mmap.mmap(heartbeat_fd, HEARTBEAT_BYTES)
    os.close(heartbeat_fd)
    start = commands.recv()
    assert isinstance(start, Start), start
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(commands, inbox), name="benthic-commands", daemon=True).start()
    writer = Writer(replies)
    with Path(start.dump_path).open("a") as dump:
        # The handler runs without the interpreter, so it also shows a step that never gives the lock back.
        faulthandler.register(signal.SIGUSR1, file=dump, all_threads=True)
        try:
            built = _built(start)
        except (BenthicError, OSError, ImportError, MemoryError) as error:
            writer.put(StartFailed(type(error).__name__, str(error)))
            writer.close()
            return 2
        writer.put(Ready(built.facts))
        _run(built, start, inbox, Heartbeat(memory), writer.put)
        writer.close()
    return 0


class Writer:
    """Sends replies in order, all that wait at once; `put` never waits."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="benthic-replies", daemon=True)
        self._thread.start()

    def put(self, reply: Reply) -> None:
        """Hands one reply over."""
        self._waiting.put(reply)

    def close(self) -> None:
        """Sends what waits, for as long as somebody might read it."""
        self._waiting.put(None)
        self._thread.join(LAST_WORDS_S)

    def _write(self) -> None:
        while True:
            batch = [self._waiting.get()]
            while not self._waiting.empty():
                batch.append(self._waiting.get())
            try:
                self._connection.send([reply for reply in batch if reply is not None])
            except OSError:  # the parent has gone; the reader ends this process
                return
            if None in batch:
                return


def _built(start: Start) -> BuiltEngine:
    """The engine, in the state that the one before it was in."""
    built = build(start.spec)
    if start.weights is not None:
        built.engine.update_weights(start.weights.path, start.weights.version, start.weights.checksum)
    if start.is_paused:
        built.engine.pause("keep")
    return built


def _run(
    built: BuiltEngine,
    start: Start,
    inbox: "queue.SimpleQueue[Command]",
    heartbeat: Heartbeat,
    send: Callable[[Reply], None],
) -> None:
    stall_s = start.spec.engine.stall_timeout_s
    with ThreadWatchdog(heartbeat, stall_s, built.engine.describe, Path(start.dump_path)):
        EngineLoop(built.engine, inbox, send, heartbeat).run()


def _read(connection: Connection, inbox: "queue.SimpleQueue[Command]") -> None:
    while True:
        try:
            inbox.put(connection.recv())
        except (EOFError, OSError):
            break
    inbox.put(Close())
    time.sleep(LAST_WORDS_S)
    os._exit(1)  # a step or a load that does not end must not outlive the parent


def _become_a_child() -> None:
    """Signals for the whole group are the parent's to judge; its own death is this process's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the libraries' own teardown takes seconds and has nothing to save
