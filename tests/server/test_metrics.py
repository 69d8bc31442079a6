"""What /metrics shows of the engine is what the engine says of itself."""

from dataclasses import fields

from prometheus_client.parser import text_string_to_metric_families

from benthic.engine.stats import EngineStats
from benthic.server.metrics import Metrics

STATS = EngineStats(**{field.name: 2 * i + 3 for i, field in enumerate(fields(EngineStats))})


def read(stats: EngineStats) -> dict[str, float]:
    metrics = Metrics()
    metrics.watch_engine(lambda: stats)
    families = text_string_to_metric_families(metrics.render().decode())
    return {sample.name.removeprefix("benthic_"): sample.value for family in families for sample in family.samples}


def test_gauges_and_counters_carry_the_engines_figures() -> None:
    found = read(STATS)
    assert found["num_running_reqs"] == STATS.num_running
    assert found["num_queue_reqs"] == STATS.num_waiting
    assert found["kv_used_pages"] == STATS.used_pages
    assert found["kv_evictable_pages"] == STATS.cached_pages
    assert found["kv_available_pages"] == STATS.total_pages - STATS.used_pages - STATS.cached_pages
    assert found["swa_used_windows"] == STATS.used_windows
    assert found["num_retracted_reqs_total"] == STATS.num_retractions
    assert found["engine_cached_tokens_total"] == STATS.num_cached_tokens
    assert found["weight_version"] == STATS.weight_version


def test_rates_are_shares_and_zero_before_anything_happened() -> None:
    found = read(STATS)
    assert found["cache_hit_rate"] == STATS.num_cached_tokens / STATS.num_prompt_tokens
    assert found["spec_accept_rate"] == STATS.num_accepted / STATS.num_drafted
    assert found["spec_accept_length"] == 1 + STATS.num_accepted / STATS.num_verified
    assert found["evicted_pages_total"] == STATS.num_evicted_pages
    assert found["token_usage"] == max(found["full_token_usage"], found["swa_token_usage"])
    empty = read(EngineStats())
    assert (empty["cache_hit_rate"], empty["spec_accept_rate"], empty["token_usage"]) == (0, 0, 0)
