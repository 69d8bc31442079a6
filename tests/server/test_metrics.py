"""What /metrics shows of the engine is what the engine says of itself, and docs/metrics.md tells of all of it."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from benthic.engine.stats import EngineStats
from benthic.server.metrics import Metrics, RecentRate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
EXPECTED = """
    num_running_reqs num_queue_reqs token_usage full_token_usage swa_token_usage kv_available_tokens
    kv_evictable_tokens kv_used_tokens swa_available_tokens swa_evictable_tokens swa_used_tokens cache_hit_rate
    cached_tokens_total prompt_tokens_total generation_tokens_total gen_throughput time_to_first_token_seconds
    inter_token_latency_seconds e2e_request_latency_seconds queue_time_seconds num_retracted_reqs_total
    num_aborted_requests_total spec_accept_length spec_accept_rate evicted_tokens_total prefetched_tokens_total
    backuped_tokens_total load_back_duration_seconds kv_transfer_latency_ms is_cuda_graph new_token_ratio
    weight_load_duration_seconds grammar_compilation_time_seconds
"""
"""Names that users of other servers look for: shown, or on the list of those that are not."""
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


@pytest.mark.anyio
async def test_the_page_and_the_route_tell_of_the_same_metrics(scripted: Any) -> None:
    async with scripted("one") as up:
        shown = (await up.client.get("/metrics")).text
    families = {
        family.name.removeprefix("benthic_") + ("_total" if family.type == "counter" else ""): family.type
        for family in text_string_to_metric_families(shown)
        if not family.name.endswith("_created")
    }
    page = PAGE.read_text()
    told = dict(re.findall(r"^\| `(\w+)` \| (counter|gauge|histogram) \|", page, re.MULTILINE))
    assert told == families
    absent = page.partition("## What other servers have")[2]
    assert [name for name in EXPECTED.split() if name not in told and f"`{name}`" not in absent] == []


def test_throughput_is_that_of_the_last_whole_seconds() -> None:
    rate = RecentRate(4)
    for second in range(10):
        rate.add(second + 0.2, 3)
        rate.add(second + 0.7)
    assert rate.per_s(10.0) == 4.0
    assert rate.per_s(12.5) == 2.0
    assert rate.per_s(100.0) == 0.0


@pytest.mark.anyio
async def test_b192_lookups_hits_and_the_reasons_for_misses_are_counted(served: Any) -> None:
    prompt = list(range(300))
    await served.json("/v1/completions", prompt=prompt, max_tokens=1)
    await served.json("/v1/completions", prompt=prompt, max_tokens=1, n=2)
    registry = served.service.metrics.registry
    assert registry.get_sample_value("benthic_prefix_queries_total") == 2
    assert registry.get_sample_value("benthic_prefix_hits_total") == 1
    assert registry.get_sample_value("benthic_prefix_cuts_total", {"cut": "namespace empty"}) == 1
    assert registry.get_sample_value("benthic_prefix_cuts_total", {"cut": "whole prompt"}) == 1
