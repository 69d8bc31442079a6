"""What the server counts, in the Prometheus text format, in a registry of its own.

Names follow the field's habit (`prompt_tokens_total`, `time_to_first_token_seconds`) behind the prefix `benthic_`.
The engine's own figures are read when somebody looks; those that count start anew when its process does.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from benthic.engine.stats import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_QUEUE_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """Counters, gauges and histograms of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "HTTP requests answered", ["route", "status"])
        self.refused = self._counter("requests_refused", "Requests refused because the server was full")
        self.unknown_fields = self._counter("unknown_fields", "Request fields that nothing in the server knows")
        self.aborted = self._counter("aborted_requests", "Generations cancelled because the client left")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of accepted requests")
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens found in the cache")
        self.generated_tokens = self._counter("generation_tokens", "Tokens generated")
        self.first_token_s = self._histogram("time_to_first_token_seconds", "Arrival to first token", _FIRST_TOKEN_S)
        self.between_tokens_s = self._histogram("inter_token_latency_seconds", "Token to token", _BETWEEN_TOKENS_S)
        self.queue_s = self._histogram("queue_time_seconds", "Arrival in the engine to first admission", _QUEUE_S)
        self.request_s = self._histogram("e2e_request_latency_seconds", "Arrival to last token", _REQUEST_S)

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when metrics are collected."""
        Gauge(f"benthic_{name}", description, registry=self.registry).set_function(read)

    def watch_engine(self, read: Callable[[], EngineStats]) -> None:
        """Add the engine's figures."""
        self.registry.register(_EngineFigures(read))

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, description: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"benthic_{name}", description, labels or [], registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"benthic_{name}", description, buckets=buckets, registry=self.registry)


_Read = Callable[[EngineStats], float]


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


_GAUGES: tuple[tuple[str, str, _Read], ...] = (
    ("num_running_reqs", "Sequences that the engine computes", lambda s: s.num_running),
    ("num_queue_reqs", "Sequences that wait for the engine", lambda s: s.num_waiting),
    ("token_usage", "Share of the fuller pool that live sequences hold", lambda s: max(_pages(s), _windows(s))),
    ("full_token_usage", "Share of the pages that live sequences hold", lambda s: _pages(s)),
    ("swa_token_usage", "Share of the windows that live sequences hold", lambda s: _windows(s)),
    ("kv_used_pages", "Pages that live sequences hold", lambda s: s.used_pages),
    ("kv_evictable_pages", "Pages kept for later prompts", lambda s: s.cached_pages),
    ("kv_available_pages", "Free pages", lambda s: s.total_pages - s.used_pages - s.cached_pages),
    ("swa_used_windows", "Windows that live sequences hold", lambda s: s.used_windows),
    ("swa_evictable_windows", "Windows kept for later prompts", lambda s: s.cached_windows),
    ("swa_available_windows", "Free windows", lambda s: s.total_windows - s.used_windows - s.cached_windows),
    ("cache_hit_rate", "Share of all prompt tokens found in the cache", lambda s: _hit_rate(s)),
    ("spec_accept_rate", "Share of the drafted tokens that the model chose too", lambda s: _accept_rate(s)),
    ("spec_accept_length", "Tokens of a verification, the model's own included", lambda s: _accept_length(s)),
    ("weight_version", "Version of the weights in force", lambda s: s.weight_version),
)
_COUNTERS: tuple[tuple[str, str, _Read], ...] = (
    ("engine_steps", "Passes", lambda s: s.num_steps),
    ("engine_graph_steps", "Of these, passes replayed from a CUDA graph", lambda s: s.num_replayed_steps),
    ("engine_prompt_tokens", "Prompt tokens of requests that the engine took", lambda s: s.num_prompt_tokens),
    ("engine_cached_tokens", "Of these, tokens found in the cache", lambda s: s.num_cached_tokens),
    ("replayed_tokens", "Tokens computed again only to restore windows", lambda s: s.num_replayed_tokens),
    ("num_retracted_reqs", "Times that a sequence gave its memory back", lambda s: s.num_retractions),
    ("timed_out_reqs", "Requests that ended at their time limit", lambda s: s.num_timeouts),
    ("spec_drafted_tokens", "Draft tokens verified", lambda s: s.num_drafted),
    ("spec_accepted_tokens", "Draft tokens accepted", lambda s: s.num_accepted),
    ("evicted_pages", "Cached pages given up for others", lambda s: s.num_evicted_pages),
    ("evicted_windows", "Cached windows given up for others", lambda s: s.num_evicted_windows),
)


def _pages(stats: EngineStats) -> float:
    return _share(stats.used_pages, stats.total_pages)


def _windows(stats: EngineStats) -> float:
    return _share(stats.used_windows, stats.total_windows)


def _hit_rate(stats: EngineStats) -> float:
    return _share(stats.num_cached_tokens, stats.num_prompt_tokens)


def _accept_rate(stats: EngineStats) -> float:
    return _share(stats.num_accepted, stats.num_drafted)


def _accept_length(stats: EngineStats) -> float:
    return 1 + _share(stats.num_accepted, stats.num_verified)


class _EngineFigures(Collector):
    """Reads one record of figures a scrape."""

    def __init__(self, read: Callable[[], EngineStats]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """All figures of this moment."""
        stats = self._read()
        for name, description, figure in _GAUGES:
            yield GaugeMetricFamily(f"benthic_{name}", description, value=figure(stats))
        for name, description, figure in _COUNTERS:
            yield CounterMetricFamily(f"benthic_{name}", description, value=figure(stats))
