"""The engine's own figures as metrics: read when somebody looks, one record a scrape.

Those that count start anew when the engine's process does.
"""

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from benthic.engine.stats import EngineStats

_Read = Callable[[EngineStats], float]


class EngineFigures(Collector):
    """Collects the tables below.

    Args:
        read: the figures of this moment.
        page_size: tokens of a page, and of a window.
        num_restarts: how often the engine had to be started anew.
    """

    def __init__(self, read: Callable[[], EngineStats], page_size: int, num_restarts: Callable[[], int]) -> None:
        self._read = read
        self._page_size = page_size
        self._num_restarts = num_restarts

    def collect(self) -> Iterable[Metric]:
        """All figures of this moment."""
        stats = self._read()
        for name, description, figure in _GAUGES:
            yield GaugeMetricFamily(f"benthic_{name}", description, value=figure(stats))
        for name, description, figure in _COUNTERS:
            yield CounterMetricFamily(f"benthic_{name}", description, value=figure(stats))
        for name, description, figure in _PAGED:
            yield GaugeMetricFamily(f"benthic_{name}", description, value=self._page_size * figure(stats))
        restarts = self._num_restarts()
        yield CounterMetricFamily("benthic_engine_restarts", "Times that the engine was started anew", value=restarts)
        tokens = self._page_size * stats.num_evicted_pages
        yield CounterMetricFamily("benthic_evicted_tokens", "Tokens of the cached pages given up", value=tokens)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _free_pages(stats: EngineStats) -> int:
    return stats.total_pages - stats.used_pages - stats.cached_pages


def _free_windows(stats: EngineStats) -> int:
    return stats.total_windows - stats.used_windows - stats.cached_windows


_GAUGES: tuple[tuple[str, str, _Read], ...] = (
    ("num_running_reqs", "Sequences that the engine computes", lambda s: s.num_running),
    ("num_queue_reqs", "Sequences that wait for the engine", lambda s: s.num_waiting),
    ("token_usage", "Share of the fuller pool that live sequences hold", lambda s: max(_pages(s), _windows(s))),
    ("full_token_usage", "Share of the pages that live sequences hold", lambda s: _pages(s)),
    ("swa_token_usage", "Share of the windows that live sequences hold", lambda s: _windows(s)),
    ("kv_used_pages", "Pages that live sequences hold", lambda s: s.used_pages),
    ("kv_evictable_pages", "Pages kept for later prompts", lambda s: s.cached_pages),
    ("kv_available_pages", "Free pages", _free_pages),
    ("swa_used_windows", "Windows that live sequences hold", lambda s: s.used_windows),
    ("swa_evictable_windows", "Windows kept for later prompts", lambda s: s.cached_windows),
    ("swa_available_windows", "Free windows", _free_windows),
    ("cache_hit_rate", "Share of all prompt tokens found in the cache", lambda s: _hit_rate(s)),
    ("spec_accept_rate", "Share of the drafted tokens that the model chose too", lambda s: _accept_rate(s)),
    ("spec_accept_length", "Tokens of a verification, the model's own included", lambda s: _accept_length(s)),
    ("weight_version", "Version of the weights in force", lambda s: s.weight_version),
    ("is_cuda_graph", "1 if the latest pass was replayed from a CUDA graph", lambda s: s.was_replayed),
    ("is_paused", "1 while no token is computed until somebody ends the pause", lambda s: s.is_paused),
)
_COUNTERS: tuple[tuple[str, str, _Read], ...] = (
    ("engine_steps", "Passes", lambda s: s.num_steps),
    ("engine_graph_steps", "Of these, passes replayed from a CUDA graph", lambda s: s.num_replayed_steps),
    ("engine_finished_reqs", "Sequences that ended, however they ended", lambda s: s.num_finished),
    ("engine_prompt_tokens", "Prompt tokens of requests that the engine took", lambda s: s.num_prompt_tokens),
    ("engine_cached_tokens", "Of these, tokens found in the cache", lambda s: s.num_cached_tokens),
    ("engine_generated_tokens", "Tokens generated, also for clients that had left", lambda s: s.num_generated_tokens),
    ("replayed_tokens", "Tokens computed again only to restore windows", lambda s: s.num_replayed_tokens),
    ("num_retracted_reqs", "Times that a sequence gave its memory back", lambda s: s.num_retractions),
    ("timed_out_reqs", "Requests that ended at their time limit", lambda s: s.num_timeouts),
    ("spec_drafted_tokens", "Draft tokens verified", lambda s: s.num_drafted),
    ("spec_accepted_tokens", "Draft tokens accepted", lambda s: s.num_accepted),
    ("evicted_pages", "Cached pages given up for others", lambda s: s.num_evicted_pages),
    ("evicted_windows", "Cached windows given up for others", lambda s: s.num_evicted_windows),
)
_PAGED: tuple[tuple[str, str, _Read], ...] = (
    ("kv_used_tokens", "Tokens of the pages that live sequences hold", lambda s: s.used_pages),
    ("kv_evictable_tokens", "Tokens of the pages kept for later prompts", lambda s: s.cached_pages),
    ("kv_available_tokens", "Tokens that the free pages hold", _free_pages),
    ("swa_used_tokens", "Tokens of the windows that live sequences hold", lambda s: s.used_windows),
    ("swa_evictable_tokens", "Tokens of the windows kept for later prompts", lambda s: s.cached_windows),
    ("swa_available_tokens", "Tokens that the free windows hold", _free_windows),
    ("max_total_num_tokens", "Tokens that all pages hold", lambda s: s.total_pages),
)
"""In pages or windows; shown in tokens."""


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
