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
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from benthic.engine.control import EngineLoop
from benthic.engine.factory import BuiltEngine, build, build_ahead
from benthic.engine.messages import Close, Command, Prepare, Ready, Reply, Start, StartFailed
from benthic.engine.watchdog import HEARTBEAT_BYTES, Heartbeat, ThreadWatchdog
from benthic.errors import BenthicError
from benthic.telemetry import log_to_stderr

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
    start, ahead = _await_start(commands)
    inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(commands, inbox), name="benthic-commands", daemon=True).start()
    writer = Writer(replies)
    dump_path = Path(start.dump_path) if start.dump_path else None
    with _open_dump(dump_path) as dump:
        # The handler runs without the interpreter, so it also shows a step that never gives the lock back.
        faulthandler.register(signal.SIGUSR1, file=dump, all_threads=True)
        try:
            built = ahead if ahead is not None else build(start.spec)
            del ahead
        except (BenthicError, OSError, ImportError, MemoryError) as error:
            writer.put(StartFailed(type(error).__name__, str(error)))
            writer.close()
            return 2
        heartbeat = Heartbeat(memory)
        loop = EngineLoop(built.engine, inbox, writer.put, heartbeat, holds_files=True)
        # In the state that the engine before it was in.
        built.engine.know_versions(start.versions)
        if start.weights is not None:
            loop.restore(start.weights)
        if start.is_paused:
            built.engine.pause("keep")
        writer.put(Ready(built.facts))
        with ThreadWatchdog(heartbeat, start.spec.engine.stall_timeout_s, built.engine.describe, dump_path):
            loop.run()
        writer.close()
    return 0


def _await_start(commands: Connection) -> tuple[Start, BuiltEngine | None]:
    """What the parent says first, and the engine that was built ahead of it, if that had been asked for."""
    first = commands.recv()
    assert isinstance(first, Start | Prepare), first
    if first.spec.log_format is not None:
        log_to_stderr(first.spec.log_format)
    if isinstance(first, Start):
        return first, None
    try:
        built = build_ahead(first.spec)
    except (BenthicError, OSError, ImportError, MemoryError) as error:
        logger.warning("no engine could be built to stand by: %s", error)
        built = None
    start = commands.recv()
    assert isinstance(start, Start), start
    return start, built if built is not None and built.facts.max_model_len >= start.least_len else None


def _open_dump(path: Path | None) -> IO[str]:
    """The file for stacks; where it is gone and cannot be made again, what is logged to."""
    try:
        return open(os.dup(2) if path is None else path, "a")
    except OSError:
        return open(os.devnull, "a") if path is None else _open_dump(None)


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
