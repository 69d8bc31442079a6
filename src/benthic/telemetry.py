"""Where a process's log goes and in which form: text for people, or one JSON object a line for machines.

A record may carry figures beside its message (`extra=figures(status=200, ...)`); both forms print them. What comes from
outside is escaped, so that nobody can write lines of their own into a log.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

LogFormat = Literal["text", "json"]

REQUESTS = "benthic.requests"
"""The logger of one line a request."""
START = "benthic.start"
"""The logger of what is said while a process starts. These two speak below a warning, the others do not."""
_KEY = "benthic_figures"


def log_to_stderr(log_format: LogFormat) -> None:
    """Sends the log of this process to stderr: warnings of everything, the start, and a line for each request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in (REQUESTS, START):
        logging.getLogger(name).setLevel(logging.INFO)


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
        time = _time_of(record).strftime("%H:%M:%S.%f")[:-3]
        line = " ".join([time, record.levelname.lower(), record.getMessage(), *pairs])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time_of(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: Any) -> str:
    """A value as one word, or quoted and escaped where it is none."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    is_word = text.isascii() and text.isprintable() and " " not in text and '"' not in text
    return text if text and is_word else json.dumps(text)
