"""Where a process's log goes and in which form: text for people, or one JSON object a line for machines.

A record may carry figures beside its message (`extra=figures(status=200, ...)`); both forms print them. What comes from
outside is escaped, so that nobody can write lines of their own into a log.
"""

import json
import logging
import queue
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]

REQUESTS = "benthic.requests"
"""The logger of one line a request."""
START = "benthic.start"
"""The logger of what is said while a process starts. These two speak below a warning, the others do not."""
_KEY = "benthic_figures"
MAX_LINES = 10_000
"""Of a log that wait for their reader."""
_FLUSH_S = 2.0


def log_to_stderr(log_format: LogFormat) -> None:
    """Sends the log of this process to stderr: warnings of everything, the start, and a line for each request."""
    handler = UnhurriedHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in (REQUESTS, START):
        logging.getLogger(name).setLevel(logging.INFO)


class UnhurriedHandler(logging.Handler):
    """Writes lines from a thread of its own: whoever logs never waits for whoever reads the log.

    A pipe whose reader stands still takes 64 KiB; a server that then waited with its next line would answer nobody.
    Lines beyond MAX_LINES that wait are dropped, and their number is written when there is room again.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.Queue[str] = queue.Queue(MAX_LINES)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._write, name="benthic-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Hands one record's line over."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._num_dropped += 1
        except Exception:  # noqa: BLE001 - as every handler: a record that cannot be written stops nobody
            self.handleError(record)

    def flush(self) -> None:
        """Waits for what has been handed over to be written, but not for ever."""
        end = time.monotonic() + _FLUSH_S
        while self._lines.unfinished_tasks and time.monotonic() < end and self._thread.is_alive():
            time.sleep(0.005)

    def close(self) -> None:
        """Writes what waits."""
        self.flush()
        super().close()

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            dropped, self._num_dropped = self._num_dropped, 0
            note = f"({dropped} lines of the log were dropped: nobody read it)\n" if dropped else ""
            try:
                self._stream.write(f"{note}{line}\n")
                self._stream.flush()
            except (OSError, ValueError):  # the reader has gone, or the stream is closed: nobody to tell
                pass
            finally:
                self._lines.task_done()


def figures(**values: Any) -> dict[str, Any]:
    """The `extra` of a record that carries these; those that are None are left out."""
    return {_KEY: {name: value for name, value in values.items() if value is not None}}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, the record's figures, and an exception's text."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": _time_of(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, _KEY, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


class TextFormatter(logging.Formatter):
    """`12:00:00.123 warning message name=value ...`, in UTC; an exception's text follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, or lines."""
        pairs = [f"{name}={_plain(value)}" for name, value in getattr(record, _KEY, {}).items()]
        clock = _time_of(record).strftime("%H:%M:%S.%f")[:-3]
        line = " ".join([clock, record.levelname.lower(), record.getMessage(), *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time_of(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: Any) -> str:
    """A value as one word, or quoted and escaped where it is none."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    is_word = text.isascii() and text.isprintable() and " " not in text and '"' not in text
    return text if text and is_word else json.dumps(text)
