"""The published figures follow from the records by the written definitions."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from benthic.bench.records import RequestRecord, write_lines
from benthic.bench.summary import Latency, ServiceLevel, quantile, summarize, summary_table
from benthic.errors import ConfigError


def record(**changes: object) -> RequestRecord:
    given: dict[str, object] = {
        "session_id": "s", "turn": 0, "due_s": 0.0, "ttft_s": 0.2, "e2e_s": 1.0, "itl_s": (0.4, 0.4),
        "prompt_len": 100, "output_len": 5, "cached_len": 64, "finish_reason": "length",
    }  # fmt: skip
    return RequestRecord(**{**given, **changes})  # type: ignore[arg-type]


def test_quantiles_are_those_of_numpy() -> None:
    rng = random.Random(1)
    for count in (1, 2, 3, 10, 101):
        values = sorted(rng.random() for _ in range(count))
        for q in (0.0, 0.5, 0.9, 0.99, 1.0):
            assert quantile(values, q) == pytest.approx(np.quantile(values, q), abs=1e-12)


def test_a_latency_of_nothing_is_none() -> None:
    assert Latency.of([]) is None


def test_time_per_token_leaves_the_first_token_out() -> None:
    assert record().tpot_s == pytest.approx(0.8 / 4)
    assert record(output_len=1).tpot_s is None


def test_rates_count_answered_requests_over_the_whole_run() -> None:
    failed = record(error="refused", e2e_s=None, ttft_s=None)
    summary = summarize([record(), record(), failed], duration_s=2.0)
    assert (summary.num_requests, summary.num_failed) == (3, 1)
    assert summary.request_rate == 1.0
    assert summary.input_rate == 100.0
    assert summary.output_rate == 5.0
    assert summary.cached_share == 0.64


def test_goodput_counts_what_kept_every_bound_and_never_a_failure() -> None:
    records = [record(), record(ttft_s=0.6), record(e2e_s=9.0), record(error="cut", ttft_s=0.1)]
    assert summarize(records, 1.0, ServiceLevel(ttft_ms=500)).goodput == 2.0
    assert summarize(records, 1.0, ServiceLevel(ttft_ms=500, tpot_ms=300)).goodput == 1.0
    assert summarize(records, 1.0).goodput == 3.0


def test_accepted_length_is_tokens_over_passes() -> None:
    records = [record(output_len=12, accepted_len=8), record(output_len=8, accepted_len=2)]
    assert summarize(records, 1.0).accept_len == 20 / 10
    assert summarize([record()], 1.0).accept_len is None


def test_the_table_shows_what_a_run_without_answers_has() -> None:
    table = summary_table(summarize([record(error="no server", e2e_s=None, ttft_s=None)], 1.0))
    assert "1 failed" in table
    assert "ttft" not in table


def test_lines_are_json_with_the_summary_last(tmp_path: Path) -> None:
    records = [record(), record(turn=1)]
    write_lines(tmp_path / "run.jsonl", records, summarize(records, 1.0).to_json())
    *lines, last = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [line["turn"] for line in lines] == [0, 1]
    assert lines[0]["itl_s"] == [0.4, 0.4]
    assert last["summary"]["ttft_s"]["median"] == 0.2


def test_a_bound_of_no_time_is_refused() -> None:
    with pytest.raises(ConfigError, match="ttft_ms is 0"):
        ServiceLevel(ttft_ms=0)
