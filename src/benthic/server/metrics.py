"""What the server counts, in the Prometheus text format, in a registry of its own.

Names follow the field's habit (`prompt_tokens_total`, `time_to_first_token_seconds`) behind the prefix `benthic_`;
docs/metrics.md explains each. The engine's own figures are read when somebody looks (`engine_figures`).
"""

import time
from collections import deque
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from benthic.engine.request import FinalOutput, Request
from benthic.engine.stats import EngineStats
from benthic.server.engine_figures import EngineFigures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
_QUEUE_S = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_GRAMMAR_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_REQUEST_S = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_RATE_S = 10


class Metrics:
    """Counters, gauges and histograms of one server.

    Args:
        page_size: tokens of a page of the engine's cache.
    """

    def __init__(self, page_size: int = 128) -> None:
        self.registry = CollectorRegistry()
        self._page_size = page_size
        self.requests = self._counter("requests", "HTTP requests answered", ["route", "status"])
        self.refused = self._counter("requests_refused", "Requests refused because the server was full")
        self.unknown_fields = self._counter("unknown_fields", "Request fields that nothing in the server knows")
        self.aborted = self._counter("num_aborted_requests", "Generations cancelled because the client left")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of accepted requests")
        self.cached_tokens = self._counter("cached_tokens", "Prompt tokens found in the cache")
        self.generated_tokens = self._counter("generation_tokens", "Tokens generated")
        self.prefix_queries = self._counter("prefix_queries", "Prompts that were looked up in the prefix cache")
        self.prefix_hits = self._counter("prefix_hits", "Of these, prompts of which something was found")
        self.prefix_cuts = self._counter("prefix_cuts", "Of these, by why no more was found", ["cut"])
        self.first_token_s = self._histogram("time_to_first_token_seconds", "Arrival to first token", _FIRST_TOKEN_S)
        self.between_tokens_s = self._histogram("inter_token_latency_seconds", "Token to token", _BETWEEN_TOKENS_S)
        self.queue_s = self._histogram("queue_time_seconds", "Arrival in the engine to first admission", _QUEUE_S)
        self.grammar_s = self._histogram("grammar_compilation_time_seconds", "Compiling a new grammar", _GRAMMAR_S)
        self.request_s = self._histogram("e2e_request_latency_seconds", "Arrival to last token", _REQUEST_S)
        self.weight_load_s = Gauge(
            "benthic_weight_load_duration_seconds", "What the latest load of weights took", registry=self.registry
        )
        self.generation_rate = RecentRate(_RATE_S)
        self.watch("gen_throughput", "Tokens a second, of late", lambda: self.generation_rate.per_s(time.monotonic()))
        ProcessCollector(namespace="benthic", registry=self.registry)

    def introduce(self, **labels: str) -> None:
        """Say what is served, as labels of a gauge that is 1."""
        info = Gauge("benthic_info", "What is served", list(labels), registry=self.registry)
        info.labels(**labels).set(1)

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when metrics are collected."""
        Gauge(f"benthic_{name}", description, registry=self.registry).set_function(read)

    def watch_engine(self, read: Callable[[], EngineStats], num_restarts: Callable[[], int] = lambda: 0) -> None:
        """Add the engine's figures."""
        self.registry.register(EngineFigures(read, self._page_size, num_restarts))

    def looked_up(self, request: Request, final: FinalOutput) -> None:
        """Count what the prefix cache was asked for a request that has ended, and what it had."""
        if final.report is None or request.fork_of is not None:
            return
        self.prefix_queries.inc()
        self.prefix_hits.inc(final.cached_len > 0)
        self.prefix_cuts.labels(final.report.cut).inc()

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, description: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"benthic_{name}", description, labels or [], registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"benthic_{name}", description, buckets=buckets, registry=self.registry)


class RecentRate:
    """Events a second over the last whole seconds, up to `span_s` of them."""

    def __init__(self, span_s: int) -> None:
        self._span_s = span_s
        self._seconds: deque[list[int]] = deque(maxlen=span_s + 1)
        """[second, events in it], ascending."""

    def add(self, now_s: float, count: int = 1) -> None:
        """So many have happened now."""
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += count
        else:
            self._seconds.append([second, count])

    def per_s(self, now_s: float) -> float:
        """The rate; the second that has not ended does not count."""
        this = int(now_s)
        return sum(count for second, count in self._seconds if this - self._span_s <= second < this) / self._span_s
