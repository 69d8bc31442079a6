"""What the server counts, in the Prometheus text format, in a registry of its own.

Names follow the field's habit (`prompt_tokens_total`, `time_to_first_token_seconds`) behind the prefix `benthic_`.
"""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_BETWEEN_TOKENS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
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
        self.request_s = self._histogram("e2e_request_latency_seconds", "Arrival to last token", _REQUEST_S)

    def watch(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge that is read when metrics are collected."""
        Gauge(f"benthic_{name}", description, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, description: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"benthic_{name}", description, labels or [], registry=self.registry)

    def _histogram(self, name: str, description: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"benthic_{name}", description, buckets=buckets, registry=self.registry)
