"""Structured logs, counters and timers: plain objects that are passed in, with no registry behind them.

A `Metrics` counts whether or not anybody looks. The server turns its snapshot into the Prometheus text format; the
trainer writes it as a line of JSON.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TextIO

Labels = tuple[tuple[str, str], ...]
Clock = Callable[[], float]

DEFAULT_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(slots=True)
class Histogram:
    """Observations counted in buckets; `counts[i]` are those <= `bounds[i]` and above the bound before."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    @property
    def count(self) -> int:
        """How many observations there were."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean of the observations, 0 without any."""
        return self.total / self.count if self.count else 0.0

    def observe(self, value: float) -> None:
        """Adds one observation."""
        index = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[index] += 1
        self.total += value

    def quantile(self, q: float) -> float:
        """Upper bound of the bucket in which the q-th part of the observations ends; infinity in the last one."""
        assert 0 <= q <= 1
        seen = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= q * self.count:
                return bound
        return 0.0


@dataclass(slots=True)
class Metrics:
    """Counters (only rise), gauges (last value) and histograms, by name and labels. Safe to use from several threads.

    `clock` counts seconds; tests pass their own.
    """

    clock: Clock = time.perf_counter
    counters: dict[tuple[str, Labels], float] = field(default_factory=dict)
    gauges: dict[tuple[str, Labels], float] = field(default_factory=dict)
    histograms: dict[tuple[str, Labels], Histogram] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock, repr=False)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Adds to a counter."""
        assert amount >= 0, f"counter {name} cannot fall by {amount}"
        key = _key(name, labels)
        with self._lock:
            self.counters[key] = self.counters.get(key, 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        """Sets a gauge."""
        with self._lock:
            self.gauges[_key(name, labels)] = value

    def observe(self, name: str, value: float, *, bounds: tuple[float, ...] = DEFAULT_BUCKETS_S, **labels: str) -> None:
        """Adds an observation to a histogram, which takes its bounds from the first one."""
        self._observe(_key(name, labels), value, bounds)

    @contextmanager
    def timer(self, name: str, **labels: str) -> Iterator[None]:
        """Observes how many seconds the block took, whether it ended well or not."""
        start = self.clock()
        try:
            yield
        finally:
            self._observe(_key(name, labels), self.clock() - start, DEFAULT_BUCKETS_S)

    def snapshot(self) -> dict[str, float]:
        """All values at this moment: `name{label="x"}` for counters and gauges, `_count`, `_sum` for histograms."""
        with self._lock:
            values = {_name(*key): value for key, value in (*self.counters.items(), *self.gauges.items())}
            for (name, labels), histogram in self.histograms.items():
                values[_name(name + "_count", labels)] = histogram.count
                values[_name(name + "_sum", labels)] = histogram.total
        return values

    def _observe(self, key: tuple[str, Labels], value: float, bounds: tuple[float, ...]) -> None:
        with self._lock:
            if key not in self.histograms:
                self.histograms[key] = Histogram(bounds, [0] * (len(bounds) + 1))
            self.histograms[key].observe(value)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and whatever was passed as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        entry: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class TextFormatter(logging.Formatter):
    """For people: `12:00:01 INFO engine: admitted request  id=r1 prompt_len=20`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, with a traceback below where there is one."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname} {record.name.removeprefix('benthic.')}: "
        text = head + record.getMessage() + (f" {fields}" if fields else "")
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def log(logger: logging.Logger, level: int, message: str, **fields: Any) -> None:
    """Logs a constant message with its values apart, so that lines can be counted and searched by field."""
    logger.log(level, message, extra={"fields": fields})


def configure_logging(*, level: str = "info", enable_json: bool = False, stream: TextIO | None = None) -> None:
    """Sends what Benthic logs to `stream` (stderr). Only programs call this; a library leaves logging to its user."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if enable_json else TextFormatter())
    root = logging.getLogger("benthic")
    root.handlers = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: Mapping[str, Any] = getattr(record, "fields", {})
    return fields


def _key(name: str, labels: Mapping[str, str]) -> tuple[str, Labels]:
    return name, tuple(sorted(labels.items()))


def _name(name: str, labels: Labels) -> str:
    inner = ",".join(f'{key}="{value}"' for key, value in labels)
    return f"{name}{{{inner}}}" if inner else name
